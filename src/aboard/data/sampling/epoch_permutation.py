"""The order of an epoch: a permutation that is computed instead of stored, so that resume is a seek."""

from collections.abc import Callable
from hashlib import blake2b
from math import isqrt

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
