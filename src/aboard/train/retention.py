"""Which checkpoints go, once there are more than the user wants to keep."""

from collections.abc import Collection, Mapping


def superfluous(good: Mapping[str, int], *, keep: int | None, newest: str, broken: Collection[str]) -> list[str]:
    """The oldest, by their serials; never `newest`, which was just written, nor one that is known to be broken.

    A broken one doesn't count either: else it would push a good one out.
    """
    if keep is None:
        return []
    older = sorted(good.keys() - {newest, *broken}, key=lambda name: good[name])
    return older[: max(0, len(older) - max(0, keep - 1))]
