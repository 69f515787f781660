"""NCCL's configuration on each node: its variables and /etc/nccl.conf, and the ports that these allow."""

import re
from collections.abc import Mapping
from hashlib import sha256

from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand, ProbeFiles, ProbeParseError
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.fabric.rdma_ports import PORTS, RdmaPort
from aboard.doctor.shared.answer_text import extract_files, require_output
from aboard.lazy_dataclass import dataclass

CONF = "/etc/nccl.conf"
# NCCL loads this one without a variable.
TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"
_LONGEST = 1000


@dataclass(frozen=True, kw_only=True)
class NcclConf:
    """The settings in /etc/nccl.conf, and the digest of the topology file that NCCL loads by default, if any."""

    settings: Mapping[str, Untrusted]
    topology: str | None


def parse_conf(answer: ProbeAnswer) -> NcclConf:
    files = extract_files(answer)
    topology = files.get(TOPOLOGY)
    return NcclConf(
        settings=_parse_settings(files.get(CONF, "")),
        topology=None if topology is None else compute_digest(topology),
    )


def parse_env(answer: ProbeAnswer) -> Mapping[str, Untrusted]:
    """The NCCL_ variables that a process started on the node inherits."""
    output = require_output(answer, "env failed")
    if output.code not in {0, 1}:
        raise ProbeParseError("env failed")
    return _parse_settings(output.stdout)


def collect_settings(facts: Facts) -> dict[str, dict[str, Untrusted]]:
    """NCCL's settings in each node's ranks: aboard.yaml overrides the node's environment, which overrides nccl.conf."""
    confs, envs = facts.of(NCCL_CONF), facts.of(NCCL_ENV)
    return {
        node.name: {
            **(confs[node.name].settings if node.name in confs else {}),
            **envs.get(node.name, {}),
            **{key: Untrusted(value) for key, value in node.env.items() if key.startswith("NCCL_")},
        }
        for node in facts.cluster
    }


def collect_known_settings(facts: Facts) -> dict[str, dict[str, Untrusted]]:
    """The settings of nodes that answered both probes: a partial answer would look like a difference."""
    confs, envs = facts.of(NCCL_CONF), facts.of(NCCL_ENV)
    return {
        name: node_settings for name, node_settings in collect_settings(facts).items() if name in confs and name in envs
    }


def list_usable_ports(facts: Facts) -> dict[str, tuple[RdmaPort, ...]]:
    """The ports of each node that NCCL may use, up or not."""
    nccl_settings = collect_settings(facts)
    return {name: select_ports(ports, nccl_settings[name]) for name, ports in facts.of(PORTS).items()}


def list_active_ports(facts: Facts) -> dict[str, tuple[RdmaPort, ...]]:
    """The ports that NCCL will use, by node; nodes without any are left out."""
    up = {name: tuple(port for port in ports if port.active) for name, ports in list_usable_ports(facts).items()}
    return {name: ports for name, ports in up.items() if ports}


def is_rdma_disabled(nccl_settings: Mapping[str, Untrusted]) -> bool:
    return nccl_settings.get("NCCL_IB_DISABLE", NO_TEXT) not in ("", "0")


def select_ports(ports: tuple[RdmaPort, ...], nccl_settings: Mapping[str, Untrusted]) -> tuple[RdmaPort, ...]:
    """The ports that NCCL_IB_DISABLE and NCCL_IB_HCA allow."""
    if is_rdma_disabled(nccl_settings):
        return ()
    spec = nccl_settings.get("NCCL_IB_HCA", NO_TEXT)
    refused, names = spec.startswith("^"), parse_hca_names(spec)
    if not names:
        return ports
    return tuple(port for port in ports if any(_is_named_port(port, name, spec) for name in names) != refused)


def parse_hca_names(spec: Untrusted) -> tuple[Untrusted, ...]:
    """The names in a value of NCCL_IB_HCA, without its signs: `^` excludes, `=` matches the whole name."""
    return tuple(Untrusted(name.strip()) for name in spec.raw().lstrip("^=").split(",") if name.strip())


def list_absent_hcas(ports: tuple[RdmaPort, ...], spec: Untrusted) -> list[Untrusted]:
    """The names in NCCL_IB_HCA that no adapter of the node has."""
    return [name for name in parse_hca_names(spec) if not any(_is_named_port(port, name, spec) for port in ports)]


def compute_digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _is_named_port(port: RdmaPort, name: Untrusted, spec: Untrusted) -> bool:
    device, _, number = name.raw().partition(":")
    exact = "=" in spec.raw()[:2]
    return (port.device == device if exact else port.device.startswith(device)) and number in {"", str(port.number)}


def _parse_settings(text: str) -> dict[str, Untrusted]:
    found = re.findall(r"^[ \t]*(NCCL_[A-Z0-9_]{1,80})[ \t]*=(.*)$", text, re.MULTILINE)
    return {key: Untrusted(value.strip()[:_LONGEST]) for key, value in found}


NCCL_CONF = Probe(name="nccl-conf", question=ProbeFiles(globs=(CONF, TOPOLOGY)), parse=parse_conf)
# Only these: the rest of an environment may hold secrets.
NCCL_ENV = Probe(name="nccl-env", question=ProbeCommand(argv=("sh", "-c", "env | grep '^NCCL_'")), parse=parse_env)
