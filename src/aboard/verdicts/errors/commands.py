"""The stories of commands that can't be obeyed as they are typed."""

from aboard.core.rule import Subject
from aboard.diagnoses import commands, configuration, paste, planning
from aboard.diagnoses.catalogue import diagnoses_in

COMMANDS = Subject(
    name="commands",
    title="what was typed can be obeyed",
    probes=(),
    rules=(),
    stories=(
        commands.COMMAND,
        commands.LAUNCH_COMMAND,
        commands.LAUNCH_DRY,
        commands.LAUNCH_ENV,
        commands.CHECK_SUBJECT,
        commands.CHECK_FIX,
        commands.INIT,
        commands.INIT_EXISTS,
        commands.INIT_WRITE,
        *diagnoses_in(planning),
        configuration.DURATION,
        configuration.RANKS,
        configuration.SHELL_NUL,
        *diagnoses_in(paste),
    ),
    asked="aboard",
)
