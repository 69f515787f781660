"""Diagnoses of messages and metrics of a run that don't arrive."""

from aboard.diagnoses.diagnosis import warning
from aboard.diagnoses.fixes import Advice

# The address reaches curl through a pipe: other users can read a command line.
_ASK = "sed 's/^/url = /' | curl -sSI -K -    # shows what the receiver answers, and posts nothing"

NOTIFY_ADDRESS = warning(
    code="notify-address",
    title="the address for messages about runs can't be used",
    symptoms=("the variable ABOARD_WEBHOOK is not set", "others can read it"),
    explanation="The address of a web hook is a secret: whoever has it can post. `notify.webhook` names a variable or a"
    " file that only you can read. The conductor reads it on the machine where it runs: in a Slurm job, on the batch"
    " host. The run goes on without messages.",
    fixes={
        "env": "read -rs {name} && export {name}    # paste the address, then press Enter",
        "file": "(umask 077; cat > {path})    # paste the address, then press Enter and Ctrl-D",
        "mode": "chmod 600 {path}",
        "url": Advice("store one line with the address that the service showed, such as https://…"),
    },
)

NOTIFY_UNSENT = warning(
    code="notify-unsent",
    title="messages about runs do not arrive",
    symptoms=("notify.webhook: timed out", "the receiver answered with status 404"),
    explanation="The receiver of `notify` can't be reached from the machine where the conductor runs, refuses messages,"
    " or does not answer. The run goes on. Aboard sends again only what has certainly not arrived, for an hour.",
    remedy="Post to the address from that machine; behind a proxy, set https_proxy there.",
    fixes={
        "env": f"printenv {{name}} | {_ASK}",
        "file": f"cat {{path}} | {_ASK}",
        "command": "{command:words} < /dev/null; echo $?",
    },
)

METRICS_UNWRITTEN = warning(
    code="metrics-unwritten",
    title="the metrics of a run can't be written for Prometheus",
    symptoms=("metrics.textfile: can't write in",),
    explanation="`metrics.textfile` is the directory of node_exporter's textfile collector on the machine where the"
    " conductor runs: in a Slurm job, the batch host. You must be able to write there. The run goes on without.",
    fixes='sudo install -d -m 755 -o "$(id -un)" {folder}    # creates it, or makes it yours',
)
