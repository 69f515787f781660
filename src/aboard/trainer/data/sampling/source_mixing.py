"""Several sources as one endless stream: a pure function from a global index to a sequence of a source."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from math import isqrt, lcm

from aboard.diagnoses import InputError, Problem
from aboard.lazy_dataclass import dataclass
from aboard.trainer.diagnoses import data

# Weights repeat after at most this many draws. Finer ones are rounded, and rejected if they are off by more than this.
_MAX_PERIOD = 100_000
_MAX_DEVIATION = Fraction(1, 100)


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceDraw:
    """What a global index refers to: a source, a sequence of it, and how often the source was used up before."""

    source: str
    bin: int
    epoch: int


Cursor = Callable[[int], SequenceDraw]


def mix_sources(sizes: Mapping[str, int], seed: int, weights: Mapping[str, float] | None = None) -> Cursor:
    """With weights, every prefix has each source's share to less than one sequence; without, each sequence comes once.

    The result depends neither on the number of ranks nor on earlier draws, and costs the same at every index.
    """
    _check_mix(sizes, weights)
    return _build_shuffled_cursor(sizes, seed) if weights is None else _build_weighted_cursor(sizes, seed, weights)


def _check_mix(sizes: Mapping[str, int], weights: Mapping[str, float] | None) -> None:
    problems = [
        Problem(where=name, seen="it has no packed sequences", fix=data.MIX.fix("empty", name=name))
        for name, size in sizes.items()
        if size < 1
    ]
    if not sizes:
        problems.append(Problem(where="sources", seen="no data source was given", fix=data.MIX.fix("none")))
    if weights is not None:
        fix = data.MIX.fix("weights", names=list(sizes))
        problems += [
            Problem(where=name, seen=f"its weight is {weights.get(name, 'missing')}", fix=fix)
            for name in sizes
            # Written so that nan fails too.
            if not 0 < weights.get(name, 0) < float("inf")
        ]
        problems += [
            Problem(where=name, seen="it has a weight, but is not a source", fix=fix)
            for name in weights
            if name not in sizes
        ]
    if problems:
        raise InputError(data.MIX, problems)


def _build_shuffled_cursor(sizes: Mapping[str, int], seed: int) -> Cursor:
    """All sequences in one permutation per epoch."""
    names, ends = tuple(sizes), tuple(accumulate(sizes.values()))
    orders = _cache_permutations(seed, ends[-1])

    def at(index: int) -> SequenceDraw:
        epoch, place = divmod(index, ends[-1])
        sequence = orders(epoch)(place)
        source = bisect_right(ends, sequence)
        return SequenceDraw(source=names[source], bin=sequence - (ends[source - 1] if source else 0), epoch=epoch)

    return at


def _build_weighted_cursor(sizes: Mapping[str, int], seed: int, weights: Mapping[str, float]) -> Cursor:
    """A cycle of sources, and in each source one permutation after the other."""
    names = tuple(sizes)
    counts = compute_draw_counts({name: weights[name] for name in names})
    cycle, before = _build_cycle([counts[name] for name in names])
    orders = tuple(_cache_permutations(_derive_source_seed(seed, name), size) for name, size in sizes.items())

    def at(index: int) -> SequenceDraw:
        turn, place = divmod(index, len(cycle))
        source = cycle[place]
        name = names[source]
        epoch, drawn = divmod(turn * counts[name] + before[place], sizes[name])
        return SequenceDraw(source=name, bin=orders[source](epoch)(drawn), epoch=epoch)

    return at


def compute_draw_counts(weights: Mapping[str, float]) -> dict[str, int]:
    """Draws of each source per cycle: exact if a cycle of at most 100,000 allows it, else within 1 %."""
    # By their text: 0.1 means a tenth, not the nearest binary fraction.
    exact_weights = {name: Fraction(str(weight)) for name, weight in weights.items()}
    total = sum(exact_weights.values())
    parts = {name: weight / total for name, weight in exact_weights.items()}
    period = lcm(*(part.denominator for part in parts.values()))
    if period <= _MAX_PERIOD:
        return {name: int(part * period) for name, part in parts.items()}
    counts = {name: int(part * _MAX_PERIOD) for name, part in parts.items()}
    short = _MAX_PERIOD - sum(counts.values())
    for name in sorted(parts, key=lambda name: counts[name] - parts[name] * _MAX_PERIOD)[:short]:
        counts[name] += 1
    off = [name for name, part in parts.items() if abs(Fraction(counts[name], _MAX_PERIOD) / part - 1) > _MAX_DEVIATION]
    if off:
        raise InputError(
            data.MIX_FAR,
            [
                Problem(
                    where=name,
                    seen=f"its weight is {float(parts[name]):.2g} of the total, which is too small to sample accurately"
                    " (within 1 %)",
                    fix=data.MIX_FAR.fix(name=name, least=f"{float(total) / 2000:g}"),
                )
                for name in off
            ],
        )
    return counts


def _build_cycle(counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """The source of each position in the cycle, and its earlier draws in the cycle.

    R. Tijdeman, The chairman assignment problem (1980): of the sources that are due, the earliest deadline first.
    No prefix is off by more than 1 - 1 / (2·sources - 2).
    """
    period, grain = sum(counts), max(2 * len(counts) - 2, 1)
    drawn = [0] * len(counts)
    cycle, before = [], []
    for place in range(1, period + 1):
        chosen, slack, size = 0, 1, 0
        for source, count in enumerate(counts):
            # All in units of 1 / (period·grain); fractions are compared by cross products, so that integers decide.
            due = (count * place - drawn[source] * period) * grain
            remaining = period * (grain - 1) - due
            if due >= period and (size == 0 or remaining * size < slack * count):
                chosen, slack, size = source, remaining, count
        cycle.append(chosen)
        before.append(drawn[chosen])
        drawn[chosen] += 1
    return cycle, before


def _cache_permutations(seed: int, size: int) -> Callable[[int], Callable[[int], int]]:
    """The permutation of each epoch; ranks stay near one position, so few are cached."""
    return lru_cache(maxsize=4)(lambda epoch: build_permutation(seed, epoch, size))


def _derive_source_seed(seed: int, name: str) -> int:
    """A seed per source, so that two sources of one size don't get the same order."""
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "little")


_WORD = (1 << 64) - 1
# Four are enough in theory (Luby and Rackoff) for large halves; small ones need more to reach all orders.
_ROUNDS = 6
_ROUNDS_SMALL = 24
_SMALL = 1 << 10


def build_permutation(seed: int, epoch: int, n: int) -> Callable[[int], int]:
    """A bijection of range(n) that is the same on every machine; O(1) in time and memory, for any n."""
    side = isqrt(max(n - 1, 0)) + 1
    keys = _derive_round_keys(seed, epoch, n)

    def at(index: int) -> int:
        if not 0 <= index < n:
            raise IndexError(f"{index} is not in range({n})")
        # side² is at most n + 2·√n: leaving range(n) is rare, and cycle walking always returns to it.
        while True:
            index = _permute_index(index, side, keys)
            if index < n:
                return index

    return at


def _derive_round_keys(seed: int, epoch: int, n: int) -> tuple[int, ...]:
    """One key per round; blake2b instead of hash(), which differs between processes."""
    rounds = _ROUNDS if n > _SMALL else _ROUNDS_SMALL
    return tuple(
        int.from_bytes(
            blake2b(f"aboard order 1 {seed} {epoch} {n} {number}".encode(), digest_size=8).digest(), "little"
        )
        for number in range(rounds)
    )


def _permute_index(index: int, side: int, keys: tuple[int, ...]) -> int:
    """A Feistel network over pairs of numbers below `side`, with addition instead of xor (Black and Rogaway)."""
    left, right = divmod(index, side)
    for key in keys:
        # The finalizer of SplitMix64 (Steele, Lea and Flood, 2014) as the round function.
        mixed = (right + key) & _WORD
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
        mixed ^= mixed >> 31
        left, right = right, (left + (mixed * side >> 64)) % side
    return left * side + right
