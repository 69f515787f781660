"""The types of the data of a page, as `aboard report --data` prints it."""

from typing import NotRequired, TypedDict

Numbers = tuple[float, ...]
Gaps = tuple[float | None, ...]


class NodeRanks(TypedDict):
    """A node and the ranks on it."""

    name: str
    ranks: tuple[int, ...]


class Verdict(TypedDict):
    """A finding and its moment; if the run went on, what was `done` about it, and how long the `pause` was."""

    code: str
    title: str
    severity: str
    nodes: list[str]
    ranks: list[int]
    seen: str
    why: str
    fix: str
    consequences: list[str]
    at: float
    attempt: NotRequired[int]
    step: NotRequired[int | None]
    until: NotRequired[float | None]
    action: NotRequired[str]
    done: NotRequired[str]
    down: NotRequired[float | None]
    pause: NotRequired[str]


class Moment(TypedDict):
    """When an attempt began, by its `number`, and the step that it continued from; or a checkpoint, by its `name`."""

    number: NotRequired[int]
    name: NotRequired[str]
    at: float
    step: int | None


class Curve(TypedDict):
    """Columns of the same length; `columns` has those that were reported, by name.

    The steps of an `attempt` that a later one repeated are a curve of their own.
    """

    step: tuple[int, ...]
    at: Numbers
    generation: tuple[int, ...]
    columns: dict[str, Gaps]
    attempt: NotRequired[int]


class Evaluations(TypedDict):
    """Columns of the same length."""

    step: tuple[int, ...]
    at: Numbers
    generation: tuple[int, ...]
    eval_loss: Gaps


class Metrics(Curve):
    """The trainer's metrics, of which the record has `rows` lines."""

    rows: int
    lost: list[Curve]
    evaluations: Evaluations
    total_steps: int | None


class Ledger(TypedDict, total=False):
    """Seconds of each class: `total`, and `over` time in buckets of `width` seconds; empty if nothing is known."""

    start: float
    width: float
    wall: float
    total: dict[str, float]
    over: dict[str, Numbers]
    divided: bool


class SlowRank(TypedDict):
    """A rank that others waited for: mostly from `start` to `stop`, in all `lost` seconds, a `share` of the time."""

    rank: int
    node: str
    start: float
    stop: float
    lost: float
    share: float
    text: str


class LatenessChart(TypedDict):
    """The heat map of ranks and time, if it was `measured`.

    `cells` has base64 for each row: 16-bit numbers, little-endian, in units of `unit` seconds; 65535 is unknown.
    """

    measured: bool
    why: NotRequired[str]
    start: NotRequired[float]
    width: NotRequired[float]
    columns: NotRequired[int]
    rows: NotRequired[int]
    ranks: NotRequired[int]
    unit: NotRequired[float]
    most: NotRequired[float]
    uncertainty: NotRequired[float]
    cells: NotRequired[tuple[str, ...]]
    slowest: NotRequired[list[SlowRank]]
    unmeasured: NotRequired[list[str]]


class Series(TypedDict):
    """Values over time, in columns of the same length."""

    at: Numbers
    value: Gaps


class Figures(TypedDict):
    """What a node reported, or what was seen of a rank: by figure, its values over time."""

    rank: NotRequired[int]
    node: str
    figures: dict[str, Series]


class Charts(TypedDict):
    """What was seen of nodes or ranks; of nodes, which figures there are, and in words what differs between nodes."""

    figures: NotRequired[list[str]]
    series: list[Figures]
    differences: NotRequired[list[str]]


class PrintedLine(TypedDict):
    """A line of output; where output was dropped, `missing` is the number of bytes, and `why` says where."""

    at: float
    stream: str
    text: str
    missing: int
    why: str


class LastOutput(TypedDict):
    """The last lines of a rank."""

    rank: int
    node: str
    lines: list[PrintedLine]


class SettingRow(TypedDict):
    """A setting that differs between runs; null where a run doesn't have it."""

    name: str
    values: list[str | None]


class RunData(TypedDict):
    """One run; where runs are compared, `lateness`, `samples` and `spells` are left out.

    `spells` are rows of class, start and end; `nonfinite` are rows of step and time. What could not be read is null or
    empty, and named in `unreadable`.
    """

    id: str
    state: str
    note: str
    program: str
    command: str
    directory: str
    training: bool
    world: int
    nodes: list[NodeRanks]
    nodes_text: str
    began: float
    until: float
    step: int | None
    steps: int | None
    goodput: float | None
    verdicts: list[Verdict]
    attempts: list[Moment]
    checkpoints: list[Moment]
    nonfinite: list[tuple[int, float]]
    metrics: Metrics | None
    ledger: Ledger
    spells: NotRequired[list[tuple[str, float, float]]]
    lateness: NotRequired[LatenessChart]
    samples: NotRequired[Charts | None]
    ranks: Charts | None
    settings: dict[str, str]
    output: list[LastOutput]
    dropped: list[str]
    unreadable: list[str]


class PageData(TypedDict):
    """The data of a page: `made` by the Aboard of this version, with what the scrubber `removed`, by kind.

    Times are seconds since 1970 by the head's clock, sizes bytes, and shares from 0 to 1.
    """

    schema: int
    aboard: str
    made: float
    runs: list[RunData]
    removed: dict[str, int]
    differences: NotRequired[list[SettingRow]]
