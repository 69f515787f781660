"""Which of two sightings came first: by their timestamps, else by their position in one file."""

from aboard.verdicts.logs.sighting import Sighting

# Lines of one failure are within this distance, however buffers reordered them.
NEAR_SECONDS = 5.0
NEAR_LINES = 200


def sort_sightings(sightings: list[Sighting]) -> list[Sighting]:
    """The earliest first. Times of two files are compared only when both have them."""
    timed = all(each.at is not None for each in sightings)
    if timed:
        return sorted(sightings, key=lambda each: (each.at or 0.0, each.file, each.line))
    return sorted(sightings, key=lambda each: (each.file, each.line))


def is_clearly_before(one: Sighting, other: Sighting) -> bool:
    """Whether one came so long before the other that the other can't be its cause; False where unknown."""
    if one.at is not None and other.at is not None and (one.file != other.file or one.at != other.at):
        return other.at - one.at > NEAR_SECONDS
    return one.file == other.file and other.line - one.line > NEAR_LINES


def is_near(one: Sighting, other: Sighting) -> bool:
    """Whether the two may be parts of one failure."""
    return not is_clearly_before(one, other) and not is_clearly_before(other, one)
