"""`python3 -m aboard.train.trackers OUTPUT_DIR`, as older runs print it."""

import sys

from aboard.trainer.trackers.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
