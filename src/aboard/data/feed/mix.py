"""Several sources as one endless stream: which bin of which source stands at a global index, as a pure function."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from math import lcm

from aboard.data.feed.order import permutation
from aboard.diagnoses import InputError, Problem, data
from aboard.lazy import dataclass

# Weights repeat after at most so many draws. Those that need more are rounded, and refused when that shows.
_PERIOD = 100_000
_OFF = Fraction(1, 100)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """What a global index stands for: the source, the bin in it, and how many times all of its bins came before."""

    source: str
    bin: int
    epoch: int


Cursor = Callable[[int], Draw]


def mix(sizes: Mapping[str, int], seed: int, weights: Mapping[str, float] | None = None) -> Cursor:
    """By weights, each prefix has its share of every source to less than one bin; without, each bin comes once a turn.

    It depends on neither the number of ranks nor on what was drawn before, and costs the same at every index.
    """
    _judge(sizes, weights)
    return _together(sizes, seed) if weights is None else _weighted(sizes, seed, weights)


def _judge(sizes: Mapping[str, int], weights: Mapping[str, float] | None) -> None:
    problems = [
        Problem(where=name, seen="it has no bins", fix=data.MIX.fix("empty", name=name))
        for name, size in sizes.items()
        if size < 1
    ]
    if not sizes:
        problems.append(Problem(where="sources", seen="there are none", fix=data.MIX.fix("none")))
    if weights is not None:
        fix = data.MIX.fix("weights", names=list(sizes))
        problems += [
            Problem(where=name, seen=f"its weight is {weights.get(name, 'missing')}", fix=fix)
            for name in sizes
            # Written so that nan fails too.
            if not 0 < weights.get(name, 0) < float("inf")
        ]
        problems += [
            Problem(where=name, seen="it has a weight, and is no source", fix=fix)
            for name in weights
            if name not in sizes
        ]
    if problems:
        raise InputError(data.MIX, problems)


def _together(sizes: Mapping[str, int], seed: int) -> Cursor:
    """All bins in one permutation."""
    names, ends = tuple(sizes), tuple(accumulate(sizes.values()))
    orders = _orders(seed, ends[-1])

    def at(index: int) -> Draw:
        epoch, place = divmod(index, ends[-1])
        found = orders(epoch)(place)
        source = bisect_right(ends, found)
        return Draw(source=names[source], bin=found - (ends[source - 1] if source else 0), epoch=epoch)

    return at


def _weighted(sizes: Mapping[str, int], seed: int, weights: Mapping[str, float]) -> Cursor:
    """A cycle of sources, and in each source one permutation after the other."""
    names = tuple(sizes)
    counts = shares({name: weights[name] for name in names})
    cycle, before = _cycle([counts[name] for name in names])
    orders = tuple(_orders(_own(seed, name), size) for name, size in sizes.items())

    def at(index: int) -> Draw:
        turn, place = divmod(index, len(cycle))
        source = cycle[place]
        name = names[source]
        epoch, drawn = divmod(turn * counts[name] + before[place], sizes[name])
        return Draw(source=name, bin=orders[source](epoch)(drawn), epoch=epoch)

    return at


def shares(weights: Mapping[str, float]) -> dict[str, int]:
    """How many draws of each source are in one cycle: exact where a cycle of 100,000 can be, else to within 1 %."""
    # By their text: 0.1 is meant to be a tenth, not the nearest binary fraction.
    asked = {name: Fraction(str(weight)) for name, weight in weights.items()}
    total = sum(asked.values())
    parts = {name: weight / total for name, weight in asked.items()}
    period = lcm(*(part.denominator for part in parts.values()))
    if period <= _PERIOD:
        return {name: int(part * period) for name, part in parts.items()}
    counts = {name: int(part * _PERIOD) for name, part in parts.items()}
    short = _PERIOD - sum(counts.values())
    for name in sorted(parts, key=lambda name: counts[name] - parts[name] * _PERIOD)[:short]:
        counts[name] += 1
    off = [name for name, part in parts.items() if abs(Fraction(counts[name], _PERIOD) / part - 1) > _OFF]
    if off:
        raise InputError(
            data.MIX_FAR,
            [
                Problem(
                    where=name,
                    seen=f"its weight is {float(parts[name]):.2g} of all: too little to be held to 1 %",
                    fix=data.MIX_FAR.fix(name=name, least=f"{float(total) / 2000:g}"),
                )
                for name in off
            ],
        )
    return counts


def _cycle(counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Which source each place of the cycle draws from, and how often it was drawn before in it.

    R. Tijdeman, The chairman assignment problem (1980): of the sources that are due, the one whose time is up first.
    No prefix is off by more than 1 - 1 / (2·sources - 2).
    """
    period, grain = sum(counts), max(2 * len(counts) - 2, 1)
    drawn = [0] * len(counts)
    cycle, before = [], []
    for place in range(1, period + 1):
        chosen, slack, size = 0, 1, 0
        for source, count in enumerate(counts):
            # All in units of 1 / (period·grain), and fractions by crosswise products, so that whole numbers decide.
            owed = (count * place - drawn[source] * period) * grain
            left = period * (grain - 1) - owed
            if owed >= period and (size == 0 or left * size < slack * count):
                chosen, slack, size = source, left, count
        cycle.append(chosen)
        before.append(drawn[chosen])
        drawn[chosen] += 1
    return cycle, before


def _orders(seed: int, size: int) -> Callable[[int], Callable[[int], int]]:
    """The permutation of each epoch; ranks stay near one place, so few are kept."""
    return lru_cache(maxsize=4)(lambda epoch: permutation(seed, epoch, size))


def _own(seed: int, name: str) -> int:
    """A seed for each source, lest two of one size keep step."""
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "little")
