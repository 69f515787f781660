"""How much may be under way to a node: as much as it took in during the last second."""

from collections import deque

# So long a beat waits at most that is sent behind it; on a very slow link, until the least of it has gone.
SPAN_SECONDS = 1.0
LEAST = 1024 * 1024
# ssh itself has no more than 2 MB under way in a channel; the rest fills the pipes between.
MOST = 4 * 1024 * 1024


class Window:
    """Grows and shrinks with what is taken in; the clock is the caller's."""

    def __init__(self) -> None:
        self.size = LEAST
        self._taken: deque[tuple[float, int]] = deque()
        self._sum = 0

    def took(self, count: int, now: float) -> None:
        self._taken.append((now, count))
        self._sum += count
        while self._taken[0][0] < now - SPAN_SECONDS:
            self._sum -= self._taken.popleft()[1]
        self.size = max(LEAST, min(MOST, self._sum))
