"""Reach: who answers, and for each node that doesn't, which of the ways it was and what to type."""

from collections.abc import Iterator

from aboard.core.facts import Facts
from aboard.core.finding import Finding, Severity
from aboard.core.node import Node
from aboard.core.reach import Reached, Unreached
from aboard.core.reason import Reason
from aboard.core.rule import Subject

# What it means and what mends it: lines to type, with what they are for behind a `#`.
_STORIES: dict[Reason, tuple[str, str]] = {
    Reason.REFUSED: (
        "The machine is up, but no ssh server listens on that port.",
        "sudo systemctl start ssh    # on {node}; if its sshd has another port, set `port:` in aboard.yaml",
    ),
    Reason.TIMED_OUT: (
        "Nothing came back at all: the machine is down, or a firewall drops the packets.",
        "ping -c 3 {target}    # is it up?\nsudo ufw allow {port}/tcp    # on {node}, if it is: let ssh through",
    ),
    Reason.NO_ROUTE: (
        "The network says that there is no way to it: it is off, in another network, or a firewall rejects us.",
        (
            "ip route get {target}    # which way would it be?\n"
            "sudo iptables -S INPUT    # on {node}: is there a REJECT before port {port} is accepted?"
        ),
    ),
    Reason.UNRESOLVED: (
        "The name means nothing to this machine, so nobody was even dialled.",
        "echo 'ADDRESS {target}' | sudo tee -a /etc/hosts    # or set `address:` of {node} in aboard.yaml",
    ),
    Reason.KEY_REFUSED: (
        "The node does not accept any key that this machine offers for this user.",
        (
            "ssh-copy-id {ssh}\n"
            "chmod go-w ~ && chmod 700 ~/.ssh && chmod 600 ~/.ssh/authorized_keys    # on {node}, if the key is there"
        ),
    ),
    Reason.HOST_KEY_CHANGED: (
        "The node shows another host key than before: it was reinstalled, or someone is in between.",
        (
            "ssh-keygen -R {known}    # only if you know that it was reinstalled\n"
            "ssh {ssh}    # and compare the fingerprint that it shows"
        ),
    ),
    Reason.HOST_KEY_UNKNOWN: (
        "The node's host key has never been seen here, and is not trusted blindly.",
        "ssh {ssh}    # once, and compare the fingerprint that it shows",
    ),
    Reason.DROPPED: (
        "sshd closed connections before the key exchange: more logins are under way there than it lets in.",
        (
            "echo 'MaxStartups 100:30:200' | sudo tee /etc/ssh/sshd_config.d/startups.conf    # on {node}\n"
            "sudo systemctl reload ssh    # on {node}"
        ),
    ),
    Reason.NO_PYTHON: (
        "The login works, but the shell that ranks will get finds no such Python.",
        "ssh {ssh} 'command -v {python}'    # install it there, or set `python:` in aboard.yaml to its full path",
    ),
    Reason.OLD_PYTHON: (
        "The agent needs Python 3.9 or later on the node.",
        "ssh {ssh} 'ls /usr/bin/python3* /opt/conda/bin/python'    # set `python:` of {node} to a newer one",
    ),
    Reason.SHELL_NOISE: (
        "The login shell there prints without end instead of running what it is given.",
        "ssh {ssh} true    # must print nothing: in ~/.bashrc, put this first: [[ $- == *i* ]] || return",
    ),
    Reason.GARBAGE: (
        "What came back is not our agent: the login shell or the Python there is not what it seems.",
        "ssh {ssh} '{python} --version'    # must print a version and nothing else",
    ),
    Reason.WRONG_VERSION: (
        "Another version of Aboard answers there; the two don't understand each other.",
        "pip install --upgrade aboard    # on the machine where you type aboard",
    ),
    Reason.SILENT: (
        "It was reached, and then said nothing: a login that hangs, a dead home directory, a stopped process.",
        "ssh -v {ssh} true    # and look at where it stops",
    ),
    Reason.NO_SSH: ("Nodes are reached with the OpenSSH client.", "sudo apt-get install openssh-client"),
    Reason.LOST: (
        "The connection was made and then lost.",
        "ssh {ssh} true    # a few times; if it comes and goes, look at the network of {node}",
    ),
    Reason.UNKNOWN: ("ssh failed in a way that we have no name for yet.", "ssh -v {ssh} true"),
}


def unreachable(facts: Facts) -> Iterator[Finding]:
    """A node without an agent can't run a rank, so the run can't start; each reason has its own fix."""
    for node in facts.cluster:
        contact = facts.contacts.get(node.name)
        if isinstance(contact, Unreached):
            why, fix = _STORIES[contact.reason]
            yield Finding(
                code=f"reach-{contact.reason.value}",
                severity=Severity.BLOCK,
                nodes=(node.name,),
                seen=contact.said,
                why=why,
                fix=fix.format(**_words(node)),
            )


def dropped_at_first(facts: Facts) -> Iterator[Finding]:
    """Logins that sshd dropped at first and that worked when tried again: it will be worse with more nodes."""
    for name, contact in facts.contacts.items():
        if isinstance(contact, Reached) and contact.drops:
            why, fix = _STORIES[Reason.DROPPED]
            yield Finding(
                code="reach-dropped-at-first",
                severity=Severity.INFO,
                nodes=(name,),
                seen=f"sshd dropped {contact.drops} of {contact.drops + 1} logins",
                why=why,
                fix=fix.format(**_words(facts.cluster.node(name))),
            )


def noisy_shell(facts: Facts) -> Iterator[Finding]:
    """A shell that prints at login breaks scp, rsync and git over ssh; we skip it, others won't."""
    for name, contact in facts.contacts.items():
        if isinstance(contact, Reached) and contact.noise:
            _why, fix = _STORIES[Reason.SHELL_NOISE]
            yield Finding(
                code="reach-noisy-shell",
                severity=Severity.INFO,
                nodes=(name,),
                seen=f"before any command, the login shell prints: {contact.noise}",
                why="We skip it, but scp, rsync and git over ssh break on it.",
                fix=fix.format(**_words(facts.cluster.node(name))),
            )


def _words(node: Node) -> dict[str, str]:
    port = str(node.port or 22)
    target = f"{node.user}@{node.target}" if node.user else node.target
    return {
        "node": node.name,
        "target": node.target,
        "python": node.python,
        "port": port,
        "ssh": target if node.port is None else f"-p {port} {target}",
        "known": node.target if node.port is None else f"'[{node.target}]:{port}'",
    }


SUBJECT = Subject(
    name="reach",
    title="every node answers",
    probes=(),
    rules=(unreachable, dropped_at_first, noisy_shell),
)
