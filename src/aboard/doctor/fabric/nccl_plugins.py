"""NCCL's network plugins: whether one is required, and whether the loader will find it in a rank."""

import re
from collections.abc import Iterator, Mapping

from aboard.core.cluster.node import Node
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand, ProbeParseError
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Finding, Fix, format_shell
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.fabric import diagnoses as fabric
from aboard.doctor.fabric.nccl_settings import collect_settings
from aboard.doctor.shared.answer_text import require_output
from aboard.doctor.shared.fix_values import quote_yaml
from aboard.doctor.shared.majority import find_majority
from aboard.lazy_dataclass import dataclass

_ANY = Untrusted("libnccl-net.so")
_BUILT_IN = re.compile(r"\A(ib|socket|)\Z", re.IGNORECASE)

# The loader's search path (ld.so(8)), then where clouds install plugins. 0x1d0f is Amazon's PCI vendor id.
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
class NcclPlugins:
    """Plugins that the loader finds, plugins elsewhere, and the number of adapters that require one."""

    found: tuple[Untrusted, ...]
    aside: tuple[Untrusted, ...]
    efa: int


def parse_plugins(answer: ProbeAnswer) -> NcclPlugins:
    printed = require_output(answer, "the search for NCCL plugins timed out").stdout
    efa = re.match(r"efa ([0-9]{1,4})$", printed, re.MULTILINE)
    if efa is None:
        raise ProbeParseError("the search for NCCL plugins printed nothing usable")
    found = tuple(Untrusted(path[:400]) for path in re.findall(r"^on (/.+)$", printed, re.MULTILINE))
    aside = tuple(Untrusted(path[:400]) for path in re.findall(r"^off (/.+)$", printed, re.MULTILINE))
    return NcclPlugins(found=found, aside=tuple(path for path in aside if path not in found), efa=int(efa[1]))


def find_missing_plugins(facts: Facts) -> Iterator[Finding]:
    """Without its plugin NCCL falls back to TCP, and logs that only at a level that is off by default."""
    nccl_settings = collect_settings(facts)
    # A container has other files than the agent sees.
    known = {name: each for name, each in facts.of(PLUGINS).items() if facts.cluster.node(name).container is None}
    common = find_majority({name: bool(each.found) for name, each in known.items()})
    for name, plugins in known.items():
        required, reason = _find_required_plugin(nccl_settings[name], plugins, common=bool(common))
        if reason and not any(_is_matching_plugin(path, required) for path in plugins.found):
            aside = next((path for path in plugins.aside if _is_matching_plugin(path, required)), NO_TEXT)
            yield fabric.PLUGIN.finding(
                nodes=(name,),
                seen=f"{reason}, but the loader can't find {required.visible()} here"
                + (f"; a copy is at {aside.visible(200)}" if aside else ""),
                fix=_fix_missing_plugin(name, required, aside, known),
            )


def _find_required_plugin(
    nccl_settings: Mapping[str, Untrusted], plugins: NcclPlugins, *, common: bool
) -> tuple[Untrusted, str]:
    """The file that NCCL will look for, and why it is required; an empty reason when it isn't."""
    plugin_name, net = nccl_settings.get("NCCL_NET_PLUGIN", NO_TEXT), nccl_settings.get("NCCL_NET", NO_TEXT)
    if plugin_name == "none":
        return NO_TEXT, ""
    if plugin_name:
        file = plugin_name if ".so" in plugin_name else Untrusted(f"libnccl-net-{plugin_name.raw()}.so")
        return file, f"NCCL_NET_PLUGIN is {plugin_name.visible()}"
    if plugins.efa:
        return _ANY, f"it has {format_count(plugins.efa, 'EFA adapter')}, which NCCL can use only through a plugin"
    if net.match(_BUILT_IN) is None:
        return _ANY, f"NCCL_NET is {net.visible()}, which is not built into NCCL"
    return _ANY, "most nodes have an NCCL network plugin" if common else ""


def _is_matching_plugin(path: Untrusted, required: Untrusted) -> bool:
    """Whether a file is the required plugin; any libnccl-net file is when none is named."""
    name = path.raw().rpartition("/")[2]
    return required == path or name.startswith("libnccl-net" if required == _ANY else required.raw())


def _fix_missing_plugin(name: str, required: Untrusted, aside: Untrusted, known: Mapping[str, NcclPlugins]) -> Fix:
    if aside:
        folder = Untrusted(aside.raw().rpartition("/")[0])
        line = format_shell("export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH", folder=folder)
        return fabric.PLUGIN.fix("aside", line=quote_yaml(line), node=name)
    like = next(
        ((node, path) for node, each in known.items() for path in each.found if _is_matching_plugin(path, required)),
        None,
    )
    if like is not None:
        return fabric.PLUGIN.fix("like", path=like[1], peer=like[0], node=name)
    return fabric.PLUGIN.fix("find", node=name)


def _build_search_command(node: Node) -> ProbeCommand:
    """The search as in a rank: with the path of aboard.yaml, and after the `setup` lines."""
    library_path = node.env.get("LD_LIBRARY_PATH")
    first = () if library_path is None else ("env", f"LD_LIBRARY_PATH={library_path}")
    return ProbeCommand(argv=(*first, *prepend_setup(node, ("sh", "-c", _SCRIPT))))


PLUGINS = Probe(name="nccl-plugins", question=_build_search_command, parse=parse_plugins)
