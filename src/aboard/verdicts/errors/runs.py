"""The stories of runs that can't be found, told of or ended, and of nodes that talk nonsense."""

from aboard.core.rule import Subject
from aboard.diagnoses import commands, records, transport
from aboard.diagnoses.catalogue import diagnoses_in

RUNS = Subject(
    name="runs",
    title="a run can be found, told of and ended",
    probes=(),
    rules=(),
    stories=(
        *diagnoses_in(records),
        commands.STOP_NONE,
        commands.STOP_WHICH,
        commands.STOP_SLOW,
        commands.LOGS_NOTHING,
        commands.LOGS_GREP,
        commands.LOGS_LINES,
        commands.WHY_CODE,
        commands.WHY_WORDS,
        commands.WHY_OPTIONS,
        commands.WHY_LOG,
        commands.WHY_PID,
        commands.WHY_NO_PROCESS,
        commands.WHY_NOT_PERMITTED,
        commands.WHY_OWN_RUN,
        commands.WHY_NO_TRAINING,
        commands.WHY_NO_NODE,
        transport.WIRE_PROTOCOL,
        transport.AGENT_ASK,
    ),
    asked="aboard",
)
