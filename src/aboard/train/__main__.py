"""`python -m aboard.train`: one rank of a training, which is in the environment as JSON; alone, it is all of them."""

import sys

from aboard.diagnoses import AboardError
from aboard.train.given import given
from aboard.train.loop import train
from aboard.train.signals import Asked
from aboard.train.world import join, leave

# What a shell says of a process that SIGTERM ended: whoever sent it sees that it was heard.
_TERMINATED = 143


def main() -> int:
    try:
        return _trained()
    except AboardError as error:
        # What it says is the whole story: where in our code it was found out would only hide it.
        error.add_note(f"fix: {error.fix}")
        raise error.with_traceback(None) from None


def _trained() -> int:
    training = given()
    world = join(training)
    asked = train(training, world)
    leave(world)
    return _TERMINATED if asked is Asked.TERMINATE else 0


if __name__ == "__main__":
    sys.exit(main())
