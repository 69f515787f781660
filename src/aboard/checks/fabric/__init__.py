"""Fabric: InfiniBand and RoCE, up, complete and fast on every node, and what NCCL will make of them.

Only recordings of such machines have proven these rules, so none of them stops a launch.
"""

from aboard.checks.fabric.direct import ACS, DIRECT, acs_on, memlock, no_gpudirect
from aboard.checks.fabric.links import flapping, ports_down, ports_missing, slow_rate, would_use_sockets
from aboard.checks.fabric.nccl import NCCL_CONF, NCCL_ENV
from aboard.checks.fabric.plugin import PLUGINS, plugin_missing
from aboard.checks.fabric.ports import PORTS
from aboard.checks.fabric.rails import RAILS, rail_cut, rails_apart
from aboard.checks.fabric.roce import gid_index, mixed_layers, no_gid
from aboard.checks.fabric.told import TOPOLOGIES, hca_absent, settings_differ, topology_differs
from aboard.checks.host.limits import LIMITS
from aboard.checks.unknown import unknown_facts, unknown_stories
from aboard.core.facts import Facts
from aboard.core.rule import Subject
from aboard.diagnoses import fabric
from aboard.diagnoses.catalogue import diagnoses_in

_OWN = (PORTS, NCCL_CONF, NCCL_ENV, PLUGINS, DIRECT, ACS)


def without_fabric(facts: Facts) -> dict[str, str]:
    """The nodes that have no RDMA port and no EFA adapter."""
    plugins = facts.of(PLUGINS)
    return {
        name: "no InfiniBand, RoCE or EFA adapter"
        for name, ports in facts.of(PORTS).items()
        if not ports and not (name in plugins and plugins[name].efa)
    }


SUBJECT = Subject(
    name="fabric",
    title="nothing is wrong with InfiniBand or RoCE, where there is any",
    # The limits are asked by `host` too, which says so when they stay unknown.
    probes=(*_OWN, LIMITS),
    rules=(
        would_use_sockets,
        plugin_missing,
        ports_missing,
        ports_down,
        slow_rate,
        flapping,
        mixed_layers,
        no_gid,
        gid_index,
        rail_cut,
        rails_apart,
        hca_absent,
        settings_differ,
        topology_differs,
        no_gpudirect,
        acs_on,
        memlock,
        unknown_facts(*_OWN),
    ),
    exercises=(TOPOLOGIES, RAILS),
    stories=(*diagnoses_in(fabric), *unknown_stories(probe for probe in _OWN if probe is not ACS)),
    untested=without_fabric,
)
