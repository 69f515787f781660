"""Fabric: InfiniBand and RoCE ports on every node, and how NCCL will use them.

These rules are tested on recordings only, so none of them stops a launch.
"""

from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.doctor.fabric import diagnoses as fabric, nccl_consistency, port_health
from aboard.doctor.fabric.gpudirect import ACS, GPUDIRECT, find_enabled_acs, find_low_memlock, find_missing_gpudirect
from aboard.doctor.fabric.nccl_plugins import PLUGINS, find_missing_plugins
from aboard.doctor.fabric.nccl_settings import NCCL_CONF, NCCL_ENV
from aboard.doctor.fabric.rdma_ports import PORTS
from aboard.doctor.fabric.roce_addresses import find_missing_gids, find_mixed_layers, find_wrong_gid_index
from aboard.doctor.fabric.roce_rails import RAILS, find_broken_rails, find_disconnected_rails
from aboard.doctor.host.limits import LIMITS
from aboard.doctor.shared.unknown_answers import list_unknown_diagnoses, make_unknown_rule

_PROBES = (PORTS, NCCL_CONF, NCCL_ENV, PLUGINS, GPUDIRECT, ACS)


def list_nodes_without_fabric(facts: Facts) -> dict[str, str]:
    """The nodes that have no RDMA port and no EFA adapter."""
    plugins = facts.of(PLUGINS)
    return {
        name: "no InfiniBand, RoCE or EFA adapter"
        for name, ports in facts.of(PORTS).items()
        if not ports and not (name in plugins and plugins[name].efa)
    }


SUBJECT = Subject(
    name="fabric",
    title="all InfiniBand and RoCE ports are present, up and at full rate",
    # `host` probes the limits too and reports when they are unknown.
    probes=(*_PROBES, LIMITS),
    rules=(
        port_health.predict_socket_fallback,
        find_missing_plugins,
        port_health.find_missing_ports,
        port_health.find_down_ports,
        port_health.find_slow_ports,
        port_health.find_flapping_ports,
        find_mixed_layers,
        find_missing_gids,
        find_wrong_gid_index,
        find_broken_rails,
        find_disconnected_rails,
        nccl_consistency.find_absent_hcas,
        nccl_consistency.find_differing_settings,
        nccl_consistency.find_topology_differences,
        find_missing_gpudirect,
        find_enabled_acs,
        find_low_memlock,
        make_unknown_rule(*_PROBES),
    ),
    multi_node_probes=(nccl_consistency.TOPOLOGIES, RAILS),
    diagnoses=(*list_diagnoses(fabric), *list_unknown_diagnoses(probe for probe in _PROBES if probe is not ACS)),
    untested=list_nodes_without_fabric,
)
