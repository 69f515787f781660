"""What a captured launcher prints of its ranks: whole lines in order, and a count of what a slow reader missed."""

import asyncio

from aboard.engine.scripts.launcher_output import MOST_SENT, MOST_WAITING, LauncherOutput
from aboard.transport.supervisor_messages import OutputChunk


class Reader:
    """Reads at once, or not at all."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.stuck = stuck
        self.read = b""
        self.expected = b""

    async def print_lines(self, stream: str, lines: bytes, *, last: bool = False) -> bool:
        if self.stuck and not last:
            return False
        self.read += lines if stream == "stdout" else b"!" + lines
        return True

    def expect(self, lines: bytes) -> None:
        self.expected += lines


def made(data: bytes, *, rank: int = 0, stream: str = "stdout", dropped: int = 0, end: bool = False) -> OutputChunk:
    return OutputChunk(node="n1", child=str(rank), stream=stream, offset=0, data=data, at=1.0, dropped=dropped, end=end)


def test_lines_of_ranks_are_not_mixed() -> None:
    """Each rank's line is printed when it is whole, also one of a progress bar; at the end of a stream, its rest."""
    reader = Reader()

    async def story() -> None:
        output = LauncherOutput(["stdout", "stderr"], reader.print_lines, reader.expect)
        for rank, stream, data in (
            (0, "stdout", b"a"),
            (1, "stdout", b"b\nc"),
            (0, "stdout", b"A\n"),
            (1, "stderr", b"9%\r8"),
        ):
            assert output.take(made(data, rank=rank, stream=stream))
        assert output.take(made(b"", rank=1, end=True))
        await output.finish()

    asyncio.run(story())
    assert reader.read == b"b\naA\n!9%\rc!8"
    assert reader.expected == reader.read.replace(b"!", b"")


def test_what_goes_where_the_scripts_own_output_goes_is_not_printed() -> None:
    """Aboard shows the lines of ranks there itself."""
    reader = Reader()

    async def story() -> None:
        output = LauncherOutput(["stderr"], reader.print_lines, reader.expect)
        assert not output.take(made(b"a\n"))
        await output.finish()

    asyncio.run(story())
    assert reader.read == b""


def test_a_reader_that_is_too_slow_misses_the_oldest_lines_and_is_told_how_much() -> None:
    """What the node had no room for counts as well; nobody waits for the reader."""
    line = b"x" * 1023 + b"\n"
    reader = Reader(stuck=True)

    async def story() -> None:
        output = LauncherOutput(["stdout"], reader.print_lines, reader.expect)
        for number in range(3 * MOST_WAITING // len(line)):
            output.take(made(b"%04d" % number + line[4:]))
        reader.stuck = False
        output.take(made(b"last\n", dropped=MOST_WAITING, end=True))
        await output.finish()
        reader.stuck = True
        output.take(made(b"never read\n"))
        await output.finish(0.05)

    asyncio.run(story())
    first, *_rest = reader.read.split(b"\n")
    assert first.startswith(b"2"), first[:9]
    assert len(reader.read) <= MOST_WAITING + MOST_SENT + 1024
    assert reader.read.endswith(
        b"last\naboard: 3 MiB of the ranks' output is missing: it was not read fast enough\n"
        b"aboard: 3 MiB of the ranks' output is missing: it was not read fast enough\n"
    )
