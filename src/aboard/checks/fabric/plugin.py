"""NCCL's network plugins: what a cloud's own adapters need, and whether the loader will find it in a rank."""

import re
from collections.abc import Iterator, Mapping

from aboard.checks.blanks import yaml_text
from aboard.checks.fabric.nccl import settings
from aboard.checks.usual import usual
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.probe import Answer, Command, Output, Probe, Unparsed
from aboard.core.setup import after_setup
from aboard.core.words import many
from aboard.diagnoses import Finding, Fix, fabric, shell
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy import dataclass

_ANY = Untrusted("libnccl-net.so")
_BUILT_IN = re.compile(r"\A(ib|socket|)\Z", re.IGNORECASE)

# What the loader looks through (ld.so(8)), then where clouds put their plugins. 0x1d0f is Amazon's number for PCI.
_SCRIPT = """efa=0
for file in /sys/class/infiniband/*/device/vendor; do
    [ -r "$file" ] && read -r vendor < "$file" && [ "$vendor" = 0x1d0f ] && efa=$((efa + 1))
done
echo "efa $efa"
IFS=:
for folder in $LD_LIBRARY_PATH; do
    for file in "$folder"/libnccl-net*.so*; do [ -e "$file" ] && echo "on $file"; done
done
{ /sbin/ldconfig -p || ldconfig -p; } 2>/dev/null | sed -n 's/^[[:space:]]*libnccl-net.*=> /on /p'
for file in /opt/amazon/ofi-nccl/lib*/libnccl-net*.so /opt/amazon/ofi-nccl/lib*/*/libnccl-net*.so \\
    /opt/aws-ofi-nccl/lib/libnccl-net*.so /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net*.so \\
    /usr/local/nccl*/lib*/libnccl-net*.so /usr/local/gib/lib64/libnccl-net*.so; do
    [ -e "$file" ] && echo "off $file"
done
exit 0"""


@dataclass(frozen=True, kw_only=True)
class Plugins:
    """Files of plugins that the loader finds, those that lie elsewhere, and how many adapters can't do without one."""

    found: tuple[Untrusted, ...]
    aside: tuple[Untrusted, ...]
    efa: int


def parse_plugins(answer: Answer) -> Plugins:
    if not isinstance(answer, Output) or answer.timed_out:
        raise Unparsed("the search for NCCL's plugins did not end in time")
    efa = re.match(r"efa ([0-9]{1,4})$", answer.stdout, re.MULTILINE)
    if efa is None:
        raise Unparsed("the search for NCCL's plugins did not say")
    found = tuple(Untrusted(path[:400]) for path in re.findall(r"^on (/.+)$", answer.stdout, re.MULTILINE))
    aside = tuple(Untrusted(path[:400]) for path in re.findall(r"^off (/.+)$", answer.stdout, re.MULTILINE))
    return Plugins(found=found, aside=tuple(path for path in aside if path not in found), efa=int(efa[1]))


def plugin_missing(facts: Facts) -> Iterator[Finding]:
    """NCCL that finds no plugin says so in a line that is off by default, and takes TCP."""
    told = settings(facts)
    # Inside a container are other files than the agent sees.
    known = {name: each for name, each in facts.of(PLUGINS).items() if facts.cluster.node(name).container is None}
    common = usual({name: bool(each.found) for name, each in known.items()})
    for name, plugins in known.items():
        wanted, reason = _wanted(told[name], plugins, common=bool(common))
        if reason and not any(_fits(path, wanted) for path in plugins.found):
            aside = next((path for path in plugins.aside if _fits(path, wanted)), NO_TEXT)
            yield fabric.PLUGIN.finding(
                nodes=(name,),
                seen=f"{reason}, but the loader finds no {wanted.visible()} here"
                + (f"; there is one at {aside.visible(200)}" if aside else ""),
                fix=_mend(name, wanted, aside, known),
            )


def _wanted(told: Mapping[str, Untrusted], plugins: Plugins, *, common: bool) -> tuple[Untrusted, str]:
    """The file that NCCL will look for, and why it must be there; no reason when it need not."""
    named, net = told.get("NCCL_NET_PLUGIN", NO_TEXT), told.get("NCCL_NET", NO_TEXT)
    if named == "none":
        return NO_TEXT, ""
    if named:
        file = named if ".so" in named else Untrusted(f"libnccl-net-{named.raw()}.so")
        return file, f"NCCL_NET_PLUGIN is {named.visible()}"
    if plugins.efa:
        return _ANY, f"it has {many(plugins.efa, 'EFA adapter')}, which NCCL can use through a plugin only"
    if net.match(_BUILT_IN) is None:
        return _ANY, f"NCCL_NET is {net.visible()}, which is no part of NCCL itself"
    return _ANY, "most nodes have a network plugin of NCCL's" if common else ""


def _fits(path: Untrusted, wanted: Untrusted) -> bool:
    """A plugin that isn't named may have any name: who installs one makes a link to it."""
    name = path.raw().rpartition("/")[2]
    return wanted == path or name.startswith("libnccl-net" if wanted == _ANY else wanted.raw())


def _mend(name: str, wanted: Untrusted, aside: Untrusted, known: Mapping[str, Plugins]) -> Fix:
    if aside:
        folder = Untrusted(aside.raw().rpartition("/")[0])
        line = shell("export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH", folder=folder)
        return fabric.PLUGIN.fix("aside", line=yaml_text(line), node=name)
    like = next(((node, path) for node, each in known.items() for path in each.found if _fits(path, wanted)), None)
    if like is not None:
        return fabric.PLUGIN.fix("like", path=like[1], peer=like[0], node=name)
    return fabric.PLUGIN.fix("find", node=name)


def _search(node: Node) -> Command:
    """As a rank will look for it: with the path of aboard.yaml, and after the `setup` lines."""
    given = node.env.get("LD_LIBRARY_PATH")
    first = () if given is None else ("env", f"LD_LIBRARY_PATH={given}")
    return Command(argv=(*first, *after_setup(node, ("sh", "-c", _SCRIPT))))


PLUGINS = Probe(name="nccl-plugins", question=_search, parse=parse_plugins)
