"""`python -m aboard.trainer.trackers OUTPUT_DIR`: sends the metrics that a run could not send to its trackers."""

import sys
from pathlib import Path

from aboard.trainer.trackers.send_metrics import send_undelivered
from aboard.trainer.trackers.sender_process import run_sender

_SENDER_ARGUMENTS = 3


def main(arguments: list[str]) -> int:
    if len(arguments) == _SENDER_ARGUMENTS:
        run_sender(Path(arguments[0]), arguments[1], int(arguments[2]))
        return 0
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m aboard.trainer.trackers OUTPUT_DIR\n")
        return 2
    return send_undelivered(Path(arguments[0]).absolute())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
