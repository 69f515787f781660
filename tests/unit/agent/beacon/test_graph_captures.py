"""The beacon asks CUDA for nothing while a graph is captured."""

from types import SimpleNamespace

import pytest

from aboard.agent.beacon.aboard_beacon_flight import _recorder, follow_captures


def test_the_recorder_is_not_read_while_a_cuda_graph_is_captured() -> None:
    """A query of an event from any thread would fail the capture; a capture that fails to begin counts as none."""

    class Graph:
        broken = False

        def capture_begin(self, pool: int = 0) -> int:
            if self.broken:
                raise RuntimeError("no memory")
            return pool

        def capture_end(self) -> None:
            if self.broken:
                raise RuntimeError("the capture was invalidated")

    follow_captures(SimpleNamespace(CUDAGraph=Graph))
    graph = Graph()
    assert _recorder.read(int, "7") == 7
    assert graph.capture_begin(pool=3) == 3
    with pytest.raises(RuntimeError, match="a CUDA graph is captured"):
        _recorder.read(int, "7")
    graph.broken = True
    with pytest.raises(RuntimeError, match="invalidated"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match="no memory"):
        graph.capture_begin()
    assert _recorder.read(int, "7") == 7
