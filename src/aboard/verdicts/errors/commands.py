"""The stories of commands that can't be obeyed as they are typed."""

from aboard.core.rule import Subject
from aboard.diagnoses import configuration, paste, planning
from aboard.diagnoses.catalogue import diagnoses_in
from aboard.verdicts.errors.row import stories

_ROWS = (
    (
        "command",
        "there is no such command",
        "there is no command",
        "Aboard has a dozen verbs.",
        "`aboard --help` lists them.",
    ),
    (
        "launch-command",
        "nothing is to be launched",
        "there is no command behind --",
        "What stands behind `--` is what every rank runs.",
        "`aboard launch -- train.py --lr 1e-5`.",
    ),
    (
        "launch-dry",
        "an option that only shows a plan",
        "it shows a plan, and this would start one",
        "`--as` and `--json` are for looking.",
        "Add `--dry-run`, or leave them out.",
    ),
    (
        "launch-env",
        "a variable can't be given to ranks",
        "is not set here",
        "`--env NAME` takes it from this shell, where it is not set; `--env NAME=value` gives it.",
        "Set it here, or write its value.",
    ),
    (
        "check-subject",
        "there is no such subject of a check",
        "no subject",
        "`--only` and `--skip` name subjects.",
        "`aboard check --help` lists them.",
    ),
    (
        "check-fix",
        "--fix has nothing to mend",
        "--fix ends leftovers",
        "It ends what earlier runs left on the nodes, which the subject `host` looks for.",
        "Leave `--fix` out, or let `host` be asked.",
    ),
    (
        "init",
        "it is not clear which nodes are meant",
        "no node is named",
        "aboard.yaml is written for nodes that are named, or that a hostfile has; one of both.",
        "`aboard init 'gpu[01-16]'`, or `aboard init --hostfile FILE`.",
    ),
    (
        "init-exists",
        "there is an aboard.yaml already",
        "the file is already there",
        "It is never overwritten.",
        "Keep it, or choose another name: `-o FILE`.",
    ),
    (
        "init-write",
        "aboard.yaml can't be written here",
        "can't be written: Permission denied",
        "The directory is not yours, or its disk is full.",
        "Choose another place: `aboard init … -o FILE`.",
    ),
)

COMMANDS = Subject(
    name="commands",
    title="what was typed can be obeyed",
    probes=(),
    rules=(),
    stories=(
        *stories(_ROWS),
        *diagnoses_in(planning),
        configuration.DURATION,
        configuration.RANKS,
        configuration.SHELL_NUL,
        *diagnoses_in(paste),
    ),
    asked="aboard",
)
