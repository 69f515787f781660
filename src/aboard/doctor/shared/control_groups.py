"""Reads files of the control groups that ranks will be in."""

from aboard.core.probes.probe import ProbeCommand

# All groups from the agent's own up to the root: the lowest limit counts. Version 1 has a tree for each controller,
# version 2 one for all; in a container the path may be the outer one, of which only the root exists.
_READ_FILES = """
controllers=$1 files=$2 lines=$3
set --
while IFS=: read -r number kinds path; do
    base=
    [ -n "$kinds" ] || base=/sys/fs/cgroup
    for controller in $controllers; do
        case ",$kinds," in *,"$controller",*) base=/sys/fs/cgroup/$controller; break ;; esac
    done
    [ -n "$base" ] || continue
    case $path in */..*) path= ;; esac
    path=${path%/}
    while :; do
        for file in $files; do
            set -- "$@" "$base$path/$file"
        done
        [ -n "$path" ] || break
        path=${path%/*}
    done
done < /proc/self/cgroup
grep -EHs -e "$lines" "$@"
exit 0
"""


def read_group_files(controllers: str, files: str, lines: str) -> ProbeCommand:
    """Prints the lines that match, each as PATH:LINE, of these files of these controllers."""
    return ProbeCommand(argv=("sh", "-c", _READ_FILES, "sh", controllers, files, lines))
