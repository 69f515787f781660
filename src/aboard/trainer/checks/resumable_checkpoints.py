"""The checkpoints that a training run could resume from, read from their manifests before any rank starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from aboard.core.decoding import parse_json
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand
from aboard.core.run.saved_markers import SavedMarker
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.shared.answer_text import require_output

# The manifests by checkpoint directory.
CheckpointManifests = Mapping[Untrusted, Mapping[str, Any]]

NAME = "checkpoints"
# The newest few, each up to its list of tensors, which grows with the model. A link may lead to a device without end.
_SCRIPT = """d=$1
case $d in '~/'*) d=$HOME/${d#??} ;; esac
ls -t "$d"/manifest.json "$d"/step-*/manifest.json 2>/dev/null | head -n 8 | while IFS= read -r file; do
    [ -f "$file" ] && [ ! -L "$file" ] || continue
    printf '\\n== %s\\n' "$file"
    head -c 4194304 "$file" | sed -n '/^"tensors":/q;p'
done"""
_MARK = "== "


def build_checkpoints_probe(folder: str) -> Probe[CheckpointManifests]:
    """The probe of a training run's directory, or of one checkpoint; `~/` is the home on the node."""
    command = ProbeCommand(argv=("sh", "-c", _SCRIPT, "sh", folder))
    return Probe(name=NAME, question=command, parse=parse_checkpoints)


def parse_checkpoints(answer: ProbeAnswer) -> CheckpointManifests:
    """Parses the manifests, skipping damaged ones."""
    output = require_output(answer, "reading the checkpoints timed out")
    found = {}
    for part in f"\n{output.stdout}".split(f"\n{_MARK}")[1:]:
        path, _, head = part.partition("\n")
        content = _parse_manifest(head)
        if content is not None:
            found[Untrusted(path.rpartition("/")[0])] = content
    return found


def find_newest_checkpoint(
    answers: Mapping[str, CheckpointManifests], markers: Sequence[SavedMarker] = ()
) -> tuple[str, Untrusted, Mapping[str, Any]] | None:
    """The node, the directory and the manifest of the checkpoint that was saved last, as a resume would choose it.

    None, which leaves it to the ranks, if these markers vouch for none of them, or if two nodes differ about that one.
    """
    known = {(each.name, each.sha256): each.serial for each in markers}
    every = [(node, path, manifest) for node, manifests in answers.items() for path, manifest in manifests.items()]

    def identify(path: Untrusted, manifest: Mapping[str, Any]) -> tuple[str, str]:
        return path.raw().rpartition("/")[2], str(manifest.get("sha256"))

    def rank(path: Untrusted, manifest: Mapping[str, Any]) -> tuple[int, int, Untrusted]:
        return known.get(identify(path, manifest), -1), manifest["serial"], path

    newest = max(every, key=lambda each: rank(each[1], each[2]), default=None)
    if newest is None or not known:
        return newest
    key = identify(*newest[1:])
    # The hash covers the tensors, too, which are not here: whoever repeats it may have changed what is before them.
    same = all(manifest == newest[2] for _node, path, manifest in every if identify(path, manifest) == key)
    return newest if key in known and same else None


def _parse_manifest(head: str) -> dict[str, Any] | None:
    """A manifest's fields before its tensors; each is on a line of its own."""
    try:
        content = parse_json(head.rstrip().rstrip(",") + "}")
    except ValueError:
        return None
    return content if isinstance(content, dict) and isinstance(content.get("serial"), int) else None
