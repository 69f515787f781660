"""Reach: each way not to answer has its own finding, with a fix that can be typed."""

import shlex
from dataclasses import replace

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import NO_KEY, Contact, ReachedNode, UnreachedNode
from aboard.core.cluster.interpreter import Interpreter, InterpreterSource
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding, Severity, sort_by_severity
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.doctor.reach.subject import ADDRESS_LOOKUP, SUBJECT

NODE = Node(name="n1", address="10.0.0.1", user="me", port=2222, python="/opt/py")


def _met(**fields: object) -> ReachedNode:
    usual = {"hostname": "n1", "user": "me", "address": "", "python": "3.11.0", "round_trip": 0.01, "clock_offset": 0.0}
    return ReachedNode(**{**usual, **fields})  # type: ignore[arg-type]


def _judge(contact: Contact, node: Node = NODE) -> list[Finding]:
    return SUBJECT.judge(Facts(cluster=Cluster(nodes=(node,)), contacts={node.name: contact}))


@pytest.mark.parametrize("reason", UnreachableReason)
def test_every_reason_has_a_story(reason: UnreachableReason) -> None:
    """What was seen, why it matters and what to type, with no blank left to fill in."""
    (finding,) = _judge(UnreachedNode(reason=reason, said="what ssh said"))
    assert finding.code == f"reach-{reason.value}"
    assert finding.severity is Severity.BLOCK
    assert finding.seen == "what ssh said"
    assert finding.why.endswith(".")
    assert not set("{}") & set(finding.fix.replace("{1,9}", ""))


@pytest.mark.parametrize("reason", ["timeout", "no-python", "old-python", "garbage", "silent", "lost"])
def test_a_node_of_a_slurm_job_has_no_fix_by_ssh(reason: str) -> None:
    """What any transport can meet is tried by srun there."""
    node = replace(NODE, transport=TransportKind.SLURM)
    (finding,) = _judge(UnreachedNode(reason=UnreachableReason(reason), said=""), node)
    assert "ssh" not in finding.fix
    assert "--nodelist=n1" in finding.fix


def test_a_fix_names_the_node_as_ssh_reaches_it() -> None:
    """User, address and port are in it, so that it can be typed as it stands."""
    (finding,) = _judge(UnreachedNode(reason=UnreachableReason.HOST_KEY_CHANGED, said=""))
    assert "ssh-keygen -R '[10.0.0.1]:2222'" in finding.fix
    assert "ssh -p 2222 me@10.0.0.1" in finding.fix
    (plain,) = _judge(UnreachedNode(reason=UnreachableReason.HOST_KEY_CHANGED, said=""), Node(name="n1"))
    assert "ssh-keygen -R n1 " in plain.fix


@pytest.mark.parametrize("python", ["python3", "/opt/my env/bin/python", "/it's/python", '"; $(x)!'])
def test_a_login_is_asked_for_python_by_one_word(python: str) -> None:
    """However its path is spelled, the far end gets one command, and in it one word."""
    (finding,) = _judge(UnreachedNode(reason=UnreachableReason.NO_PYTHON, said=""), Node(name="n1", python=python))
    (_, _, there) = shlex.split(finding.fix.partition("    # ")[0])
    (*login, find) = shlex.split(there)
    assert (login, shlex.split(find)) == (["bash", "-lc"], ["command", "-v", python])


def test_a_key_file_that_others_may_read_is_one_finding() -> None:
    """It is wrong here, whoever is dialled, and the fix has its real path."""
    said = "Permissions 0644 for '/home/me/my keys/id' are too open."
    cluster = Cluster(nodes=(Node(name="n1"), Node(name="n2")))
    contacts = {node.name: UnreachedNode(reason=UnreachableReason.KEY_REFUSED, said=said) for node in cluster}
    (finding,) = SUBJECT.judge(Facts(cluster=cluster, contacts=contacts))
    assert finding.nodes == ("n1", "n2")
    assert finding.fix.startswith("chmod 600 '/home/me/my keys/id'    # here")


def test_a_user_without_any_key_makes_one_first() -> None:
    """One finding for all nodes, and one command that creates a key and installs it."""
    cluster = Cluster(nodes=(Node(name="n1"), Node(name="n2", user="me"), Node(name="n3", port=2222)))
    said = f"{NO_KEY}; me@n1: Permission denied (publickey)."
    contacts = {node.name: UnreachedNode(reason=UnreachableReason.KEY_REFUSED, said=said) for node in cluster}
    (finding,) = SUBJECT.judge(Facts(cluster=cluster, contacts=contacts))
    assert (finding.code, finding.nodes) == ("reach-key-refused", ("n1", "n2", "n3"))
    assert finding.seen == f"{NO_KEY}; me@n1: Permission denied (publickey)."
    assert finding.fix.partition("    #")[0] == "aboard trust n1 me@n2 n3"


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ("aboard.yaml", "aboard trust"),
        ("my nodes.yaml", "aboard trust 'my nodes.yaml'"),
        ("/job/hostfile", "aboard trust --hostfile /job/hostfile"),
        ("the command line", "aboard trust n1"),
    ],
)
def test_an_unknown_host_key_is_compared_by_aboard_trust(source: str, command: str) -> None:
    """The fix names the nodes the way the user did, so that their ports and addresses stay."""
    cluster = Cluster(nodes=(Node(name="n1"),), source=source)
    contacts = {"n1": UnreachedNode(reason=UnreachableReason.HOST_KEY_UNKNOWN, said="")}
    (finding,) = SUBJECT.judge(Facts(cluster=cluster, contacts=contacts))
    assert finding.fix.partition("    #")[0] == command


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        (
            "3.6.8; also installed: /usr/bin/python3.9 /usr/bin/python3.12 /usr/bin/python3.6",
            "python: /usr/bin/python3.12 ",
        ),
        ("3.6.8; also installed: /usr/bin/python3.6", "ssh "),
        ("3.6.8; also installed: /x/$(reboot)/python3.12", "ssh "),
        ("3.6.8", "ssh "),
    ],
)
def test_an_old_python_has_a_newer_one_beside_it(said: str, fix: str) -> None:
    """Then that one is proposed, by its path."""
    (finding,) = _judge(UnreachedNode(reason=UnreachableReason.OLD_PYTHON, said=said))
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize(
    ("path", "own", "fix"),
    [
        ("/opt/env/bin/python", "python3", "python: /opt/env/bin/python "),
        ("/opt/env/bin/python", "/opt/env/bin/python", "python: /usr/bin/python3.12 "),
        ("python3", "python3", "python: /usr/bin/python3.12 "),
    ],
    ids=["environment", "environment that is too old itself", "login shell"],
)
def test_an_old_python_is_replaced_by_the_environment_of_the_other_ranks(path: str, own: str, fix: str) -> None:
    """A newer Python of the system would lack the packages that all other ranks have."""
    chosen = Interpreter(path=path, origin=InterpreterSource.ABOARD)
    nodes = (Node(name="n1", python=own), Node(name="n2", interpreter=chosen), Node(name="n3", interpreter=chosen))
    said = "3.6.8; also installed: /usr/bin/python3.12"
    lost = UnreachedNode(reason=UnreachableReason.OLD_PYTHON, said=said)
    facts = Facts(cluster=Cluster(nodes=nodes), contacts={"n1": lost, "n2": _met(), "n3": _met()})
    (finding,) = SUBJECT.judge(facts)
    assert finding.fix.startswith(fix)


def test_another_node_knows_the_address() -> None:
    """Who can't resolve a name asks those who answer; what is no address that others can dial doesn't count."""
    lost, first, second = Node(name="n1"), Node(name="n2"), Node(name="n3")
    contacts: dict[str, Contact] = {
        "n1": UnreachedNode(reason=UnreachableReason.UNRESOLVED, said=""),
        "n2": _met(),
        "n3": _met(),
    }
    facts = Facts(cluster=Cluster(nodes=(lost, first, second)), contacts=contacts)
    script = ADDRESS_LOOKUP.script(facts)
    assert list(next(script)) == ["n2"]
    assert list(script.send({"n2": {"stdout": "of n1\n127.0.1.1 STREAM n1\nnonsense\n"}})) == ["n3"]
    with pytest.raises(StopIteration) as done:
        script.send({"n3": {"stdout": "of n1\n10.0.0.1      STREAM n1\nof other\n10.0.0.9 STREAM\n"}})
    (finding,) = SUBJECT.judge(replace(facts, outcomes={ADDRESS_LOOKUP.name: done.value.value}))
    assert finding.fix.startswith("echo '10.0.0.1 n1' | sudo tee -a /etc/hosts    # here")


def test_an_unknown_address_is_in_no_command() -> None:
    """A mistyped name has none: `echo 'ADDRESS n1' | sudo tee -a /etc/hosts` would have damaged the file."""
    (finding,) = _judge(UnreachedNode(reason=UnreachableReason.UNRESOLVED, said=""))
    assert finding.fix == "correct the name, or set `address:` for n1 in aboard.yaml"


def test_nobody_is_asked_for_names_that_are_known() -> None:
    """Where all could be resolved, there is no round."""
    with pytest.raises(StopIteration):
        next(ADDRESS_LOOKUP.script(Facts(cluster=Cluster(nodes=(NODE,)), contacts={"n1": _met()})))


def test_a_node_that_answers_is_no_finding() -> None:
    """Healthy is quiet."""
    assert _judge(_met()) == []


def test_drops_and_noise_are_worth_a_line() -> None:
    """They work today and break something tomorrow: told, and never in the way of a launch."""
    findings = _judge(_met(drops=2, noise="Welcome"))
    assert [finding.code for finding in findings] == ["reach-dropped-at-first", "reach-noisy-shell"]
    assert all(finding.severity is Severity.INFO for finding in findings)
    assert "2 of 3" in findings[0].seen
    assert "Welcome" in findings[1].seen


def test_the_worst_comes_first_and_else_the_order_stays() -> None:
    """Of equal weight, the rule that spoke first stands first."""
    bad = _judge(UnreachedNode(reason=UnreachableReason.REFUSED, said=""))
    mild = _judge(_met(drops=2, noise="Welcome"))
    assert sort_by_severity([*mild, *bad]) == [*bad, *mild]
