"""`plan.json`: the plan as it is recorded, with what was typed, in case the conductor is killed."""

import json
from typing import Any

from aboard.core.plan.plan import Plan
from aboard.diagnoses import Shell
from aboard.engine.records.plan_json import format_plan_json
from aboard.engine.records.secret_redaction import build_redactor
from aboard.lazy_dataclass import dataclass
from aboard.record.run_record import Record


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """Where the plan of a run is recorded, with the command, the directory and the lease in seconds."""

    record: Record
    command: Shell
    cwd: str
    lease: float

    def write(self, plan: Plan) -> None:
        self.record.write_plan(self.encode(plan))

    def encode(self, plan: Plan) -> dict[str, Any]:
        """The document, without the values of secrets."""
        typed = {"command": build_redactor(plan)(self.command), "cwd": self.cwd, "lease": self.lease}
        return {**typed, **json.loads(format_plan_json(plan))}
