"""One case of the fault bench: inject the fault in its phase, collect the verdicts, score them, type the fix."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aboard.diagnoses import AboardError
from faults_cases import Case
from faults_fix import TRAINS, apply_fix, apply_fix_before_launch, has_changed_hosts
from faults_stage import RANKS, START_SECONDS, Finding, Running, Stage, list_ranks, wait_until
from faults_troubles import Trouble

# How long to wait for a verdict. A wrong one may be withdrawn in the meantime.
PATIENCE_SECONDS = 32.0
_MOVES_SECONDS = 60.0
_SEVERE = ("warn", "block")
Result = dict[str, Any]


class Session:
    """A training for several faults in sequence; starts a new one when the last did not survive."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._stack = contextlib.ExitStack()
        self._running: Running | None = None

    def running(self) -> Running:
        if self._running is not None and (self._running.over or not self._settled()):
            self.close()
        if self._running is None:
            self._running = self._stack.enter_context(self.stage.launch())
            assert wait_until(lambda: len(self.stage.marks("warm")) == RANKS, START_SECONDS), self._running.output[
                -2000:
            ]
        return self._running

    def close(self) -> None:
        self._stack.close()
        self._running = None

    def _settled(self) -> bool:
        """Whether it makes steps and has no open verdict."""
        running = self._running
        if running is None:
            return False
        before = running.step()
        return wait_until(lambda: running.step() >= before + 3 and running.standing() is None, _MOVES_SECONDS)


def try_case(stage: Stage, case: Case, session: Session) -> Result:
    """Runs one case and returns its scored result."""
    if case.lasts:
        found = _try_in_session(stage, case, session)
    else:
        session.close()
        found = _try_before(stage, case) if case.when == "before" else _try_alone(stage, case)
    return {
        "name": case.name,
        "row": case.row,
        "when": case.when,
        "node": case.node,
        "rank": case.victim_rank,
        "wanted": list(case.codes),
        "held_out": case.held_out,
        "blind": case.blind,
        "load": round(os.getloadavg()[0], 1),
        **found,
    }


def is_right(case: Case, finding: Finding) -> bool:
    """Whether cause and node (of a link: at most two nodes) are correct, and the rank if one has the fault."""
    node = case.anywhere or (case.node in finding["nodes"] and len(finding["nodes"]) <= 2)
    rank = not case.rank or finding["ranks"] == [case.victim_rank]
    return finding["code"] in case.codes and node and rank


def _try_before(stage: Stage, case: Case) -> Result:
    """A fault that the launch's preflight check must name; seconds count from the command."""
    assert case.trouble is not None
    with _inject_trouble(stage, case, case.trouble), stage.launch(*case.words, check="quick") as running:
        wait_until(lambda: running.over or running.preflight_findings() or stage.marks("imported"), 60)
        seconds = time.time() - running.typed
        found = _score_verdicts(case, [(seconds, finding) for finding in running.preflight_findings()[:1]], running)
        running.end()
        found |= apply_fix_before_launch(stage, case)
    if not case.by_hand:
        stage.renew()
    stage.restore(case.node)
    left = {finding["code"] for finding in stage.check(*case.words)} & set(case.codes)
    return {
        **found,
        "mended": "healed: the next check is silent" if not left else f"healed, STILL SAID: {sorted(left)}",
    }


def _try_in_session(stage: Stage, case: Case, session: Session) -> Result:
    running = session.running()
    with _inject_beneath(stage, case):
        (stage.folder / "release").unlink(missing_ok=True)
        with contextlib.ExitStack() as broken:
            since = time.time()
            if case.own:
                stage.order(case.own, case.who or case.victim_rank)
                assert wait_until(lambda: stage.marks("effect"), 30), "the rank did not reach its fault"
                since = min(stage.marks("effect").values())
            if case.trouble is not None:
                broken.enter_context(_inject_trouble(stage, case, case.trouble))
            found = _collect_verdicts(case, running, since, lambda: since)
            found |= apply_fix(stage, case, running, found["fix"], {})
        stage.release(case.node)
        if case.own == "nan":
            stage.order("number", case.victim_rank)
    before = running.step()
    goes_on = not running.over and wait_until(lambda: running.over or running.step() >= before + 3, _MOVES_SECONDS)
    well = goes_on and not running.over
    if has_changed_hosts(found):
        session.close()
        stage.renew()
    if found["fix_typed"] == TRAINS:
        return {**found, "mended": "mended: the next launch trains"}
    return {**found, "mended": "mended: the same run goes on" if well else "mended, and the run did NOT go on"}


def _try_alone(stage: Stage, case: Case) -> Result:
    env = dict(case.env)
    if case.own:
        env |= {
            "FAULT": case.own,
            "FAULT_RANK": case.who or str(case.victim_rank),
            "FAULT_PLACE": "step" if case.when == "run" else case.when,
            "ODD_RANK": str(case.victim_rank),
        }
    try:
        with _inject_beneath(stage, case), stage.launch(*case.words, env=env) as running:
            found = break_run(stage, case, running, env)
    finally:
        stage.restore(case.node)
    if has_changed_hosts(found):
        stage.renew()
    return found


def break_run(stage: Stage, case: Case, running: Running, env: Mapping[str, str]) -> Result:
    """Waits for the phase, injects the fault, collects verdicts, types the fix; `env` is also for the next launch."""
    since = time.time()
    with contextlib.ExitStack() as broken:
        if case.trouble is not None:
            wanted = RANKS if case.all_there else 1
            ranks = range(RANKS) if case.all_there else [case.victim_rank]

            def there() -> bool:
                return running.over or sum(rank in stage.marks(case.trigger) for rank in ranks) >= wanted

            assert wait_until(there, START_SECONDS), f"no mark {case.trigger}: {running.output[-2000:]}"
            since = time.time()
            broken.enter_context(_inject_trouble(stage, case, case.trouble))
        found = _collect_verdicts(case, running, since, lambda: find_effect_time(stage, case, since))
        return {**found, **apply_fix(stage, case, running, found["fix"], env)}


def find_effect_time(stage: Stage, case: Case, injected: float) -> float | None:
    """When the fault first had an effect; None if it has none yet."""
    if case.effect == "inject":
        return injected
    mine = list_ranks([case.node]) if not case.rank else [case.victim_rank]
    if case.effect != "join":
        marks = stage.marks(case.effect)
        times = [at for rank, at in marks.items() if rank in mine or case.who == "all"]
        return max(injected, min(times)) if times and case.trouble else min(times, default=None)
    # Until rank 0 has joined, waiting is normal.
    joins = stage.marks("join")
    others = [at for rank, at in joins.items() if (rank not in mine) == (0 in mine or bool(stage.marks("effect")))]
    own = [at for rank, at in stage.marks("effect").items() if rank in mine or case.who == "all"]
    if not joins or (case.own and not own) or (not case.own and not others):
        return None
    return max([*own[:1], joins.get(0, min(others or joins.values())), *([min(others)] if others else [])])


def _collect_verdicts(case: Case, running: Running, since: float, effect: Callable[[], float | None]) -> Result:
    """Listens until the right verdict is there, the run is over, or patience ends."""
    began = time.monotonic()
    shown: float | None = None
    while True:
        at = effect()
        if at is not None and shown is None:
            shown, began = at, time.monotonic()
        told = running.verdicts(since if at is None else min(since, at) if case.own else since)
        if running.over or any(is_right(case, finding) for _at, finding in told):
            break
        if time.monotonic() - began > (PATIENCE_SECONDS if shown is not None else START_SECONDS):
            break
        time.sleep(0.1)
    at = effect()
    told = running.verdicts(since if not case.own else 0.0 if at is None else at - 1)
    return _score_verdicts(
        case, [(when - at if at is not None else when - since, finding) for when, finding in told], running
    )


def _score_verdicts(case: Case, told: list[tuple[float, Finding]], running: Running) -> Result:
    """Scores the first verdict: a wrong cause reported first misleads the user."""
    first = told[0] if told else None
    right = next(((seconds, finding) for seconds, finding in told if is_right(case, finding)), None)
    shown = right or first
    return {
        "right": first is not None and is_right(case, first[1]),
        "right_later": right is not None,
        "seconds": round(max(0.0, shown[0]), 2) if shown else None,
        "code": first[1]["code"] if first else None,
        "nodes": first[1]["nodes"] if first else [],
        "ranks": first[1]["ranks"] if first else [],
        "said": [
            f"{seconds:.1f} s: {finding['code']} {finding['nodes']} {finding['ranks']}: {finding['seen'][:300]}"
            for seconds, finding in told
        ],
        "fix": shown[1]["fix"] if shown else "",
        "tail": "" if right else running.output[-1500:],
    }


@contextlib.contextmanager
def _inject_beneath(stage: Stage, case: Case) -> Iterator[None]:
    with _inject_trouble(stage, case, case.beneath) if case.beneath is not None else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _inject_trouble(stage: Stage, case: Case, trouble: Trouble) -> Iterator[None]:
    """Injects a trouble for a `with` block; if a typed fix prevents healing, the hosts are replaced."""
    healing = contextlib.ExitStack()
    healing.enter_context(trouble.on(stage, case.node, case.victim_rank))
    try:
        yield
    finally:
        try:
            healing.close()
        except AboardError:
            stage.renew()


def format_summary(result: Mapping[str, Any]) -> str:
    seconds = f"{result['seconds']:5.1f} s" if result["seconds"] is not None else "   never"
    verdict = "correct" if result["right"] else "late   " if result["right_later"] else "WRONG  "
    said = f"{result['code']} {','.join(result['nodes'])} {','.join(map(str, result['ranks']))}"
    held = "held out" if result["held_out"] else "blind" if result.get("blind") else ""
    who = f"{result['name']:<42} {result['node']} {result['rank']}"
    return f"{who}  {verdict} {seconds}  {said:<44} {held:<8} {result.get('fix_typed', '')[:160]}"
