"""Causes and consequences: what one finding explains is folded under it, so that the first line is the one to mend."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from aboard.core.finding import Finding
from aboard.core.story import Story


def cascade(findings: Iterable[Finding], stories: Iterable[Story]) -> list[Finding]:
    """The findings in their order, without those that another one on the same nodes explains: they are its own now."""
    leads_to: Mapping[str, tuple[str, ...]] = {story.code: story.leads_to for story in stories}
    left = list(findings)
    for cause in list(left):
        explained = [other for other in left if other is not cause and _explains(cause, other, leads_to)]
        # Looked up by identity: an earlier cause may have taken this one, or been given consequences of its own.
        place = next((place for place, each in enumerate(left) if each is cause), None)
        if explained and place is not None:
            left[place] = replace(cause, consequences=(*cause.consequences, *explained))
            left = [each for each in left if not any(each is other for other in explained)]
    return left


def _explains(cause: Finding, other: Finding, leads_to: Mapping[str, tuple[str, ...]]) -> bool:
    """A cause explains what it leads to wherever one of its own nodes is involved."""
    return other.code in leads_to.get(cause.code, ()) and bool(set(cause.nodes) & set(other.nodes))
