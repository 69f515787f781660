"""The last lines that ranks printed, scrubbed."""

from collections.abc import Sequence
from contextlib import closing
from itertools import islice

from aboard.commands.report.page_data import LastOutput, PrintedLine
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.core.text.fold_lines import OutputLine
from aboard.diagnoses.untrusted import escape_text
from aboard.record.rank_logs.log_reader import LogReader
from aboard.record.run_directory import RunDirectory

_LINES = 60
_LONGEST_LINE = 2_000
# Lines are at most 64 KB, which are scrubbed whole: a key may begin far to the left.
_MOST_BYTES = 2**20


def read_last_output(run: RunDirectory, ranks: Sequence[int], scrubber: SecretScrubber) -> list[LastOutput]:
    """The last lines of each of the ranks that has printed any."""
    if not run.logs.is_dir():
        return []
    with closing(LogReader(run.logs)) as reader:
        listing = reader.list_segments(set(ranks))
        found = []
        for rank in ranks:
            lines, room = [], _MOST_BYTES
            for _entry, line in islice(reader.backward(listing, rank), _LINES):
                room -= len(line.text)
                if room < 0:
                    break
                lines.append(line)
            if lines:
                found.append(_describe_output(rank, lines[::-1], scrubber))
        return found


def _describe_output(rank: int, lines: Sequence[OutputLine], scrubber: SecretScrubber) -> LastOutput:
    pieces = [line.text.decode("utf-8", "replace") for line in lines]
    # What one stream printed is scrubbed as one text, since a key spans lines.
    texts = list(pieces)
    for stream in {line.stream for line in lines}:
        places = [place for place, line in enumerate(lines) if line.stream == stream]
        scrubbed = scrubber.pieces([f"{pieces[place]}\n" for place in places], cut=True)
        for place, text in zip(places, scrubbed, strict=True):
            texts[place] = text.removesuffix("\n")
    return {
        "rank": rank,
        "node": escape_text(lines[-1].node),
        "lines": [
            PrintedLine(
                at=round(line.at, 3),
                stream=line.stream,
                text=escape_text(text.replace("\t", "    "), _LONGEST_LINE),
                missing=line.missing,
                why=line.why,
            )
            for line, text in zip(lines, texts, strict=True)
        ],
    }
