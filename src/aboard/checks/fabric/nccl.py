"""What NCCL was told on each node: its variables and /etc/nccl.conf, and which ports that leaves it."""

import re
from collections.abc import Mapping
from hashlib import sha256

from aboard.checks.fabric.ports import PORTS, Port
from aboard.core.facts import Facts
from aboard.core.probe import Answer, Command, Contents, Files, Output, Probe, Unparsed
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy import dataclass

CONF = "/etc/nccl.conf"
# NCCL takes this one by itself, without a variable.
TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"
_LONGEST = 1000


@dataclass(frozen=True, kw_only=True)
class Conf:
    """What /etc/nccl.conf sets, and a digest of the topology that NCCL loads unasked; None where there is none."""

    settings: Mapping[str, Untrusted]
    topology: str | None


def parse_conf(answer: Answer) -> Conf:
    if not isinstance(answer, Contents):
        raise Unparsed("not a list of files")
    topology = answer.files.get(TOPOLOGY)
    return Conf(settings=_pairs(answer.files.get(CONF, "")), topology=None if topology is None else digest(topology))


def parse_env(answer: Answer) -> Mapping[str, Untrusted]:
    """The NCCL_ variables that a process started on the node inherits."""
    if not isinstance(answer, Output) or answer.timed_out or answer.code not in {0, 1}:
        raise Unparsed("env did not say")
    return _pairs(answer.stdout)


def settings(facts: Facts) -> dict[str, dict[str, Untrusted]]:
    """What NCCL will see in a rank of each node: aboard.yaml wins over the node's environment, that over nccl.conf."""
    confs, envs = facts.of(NCCL_CONF), facts.of(NCCL_ENV)
    return {
        node.name: {
            **(confs[node.name].settings if node.name in confs else {}),
            **envs.get(node.name, {}),
            **{key: Untrusted(value) for key, value in node.env.items() if key.startswith("NCCL_")},
        }
        for node in facts.cluster
    }


def known_settings(facts: Facts) -> dict[str, dict[str, Untrusted]]:
    """For nodes that answered both questions: half an answer would look like a difference."""
    confs, envs = facts.of(NCCL_CONF), facts.of(NCCL_ENV)
    return {name: told for name, told in settings(facts).items() if name in confs and name in envs}


def usable(facts: Facts) -> dict[str, tuple[Port, ...]]:
    """The ports of each node that NCCL may use, up or not."""
    told = settings(facts)
    return {name: chosen(ports, told[name]) for name, ports in facts.of(PORTS).items()}


def active(facts: Facts) -> dict[str, tuple[Port, ...]]:
    """The ports of each node that NCCL will use; not in it where there are none."""
    up = {name: tuple(port for port in ports if port.active) for name, ports in usable(facts).items()}
    return {name: ports for name, ports in up.items() if ports}


def disabled(told: Mapping[str, Untrusted]) -> bool:
    return told.get("NCCL_IB_DISABLE", NO_TEXT) not in ("", "0")


def chosen(ports: tuple[Port, ...], told: Mapping[str, Untrusted]) -> tuple[Port, ...]:
    """What NCCL_IB_DISABLE and NCCL_IB_HCA leave."""
    if disabled(told):
        return ()
    spec = told.get("NCCL_IB_HCA", NO_TEXT)
    refused, wanted = spec.startswith("^"), hca_names(spec)
    if not wanted:
        return ports
    return tuple(port for port in ports if any(_meant(port, name, spec) for name in wanted) != refused)


def hca_names(spec: Untrusted) -> tuple[Untrusted, ...]:
    """The names in a value of NCCL_IB_HCA, without its signs: `^` refuses, `=` wants the name whole."""
    return tuple(Untrusted(name.strip()) for name in spec.raw().lstrip("^=").split(",") if name.strip())


def absent(ports: tuple[Port, ...], spec: Untrusted) -> list[Untrusted]:
    """The names in NCCL_IB_HCA that no adapter of the node has."""
    return [name for name in hca_names(spec) if not any(_meant(port, name, spec) for port in ports)]


def digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _meant(port: Port, name: Untrusted, spec: Untrusted) -> bool:
    device, _, number = name.raw().partition(":")
    exact = "=" in spec.raw()[:2]
    return (port.device == device if exact else port.device.startswith(device)) and number in {"", str(port.number)}


def _pairs(text: str) -> dict[str, Untrusted]:
    found = re.findall(r"^\s*(NCCL_[A-Z0-9_]{1,80})\s*=[ \t]*(.*?)\s*$", text, re.MULTILINE)
    return {key: Untrusted(value[:_LONGEST]) for key, value in found}


NCCL_CONF = Probe(name="nccl-conf", question=Files(globs=(CONF, TOPOLOGY)), parse=parse_conf)
# Only these: the rest of an environment may hold secrets, and is no business of ours.
NCCL_ENV = Probe(name="nccl-env", question=Command(argv=("sh", "-c", "env | grep '^NCCL_'")), parse=parse_env)
