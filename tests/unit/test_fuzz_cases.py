"""Inputs that once made a decoder crash, hang or fill the memory; `bench/fuzz.py` found and kept them."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz import CASES, catch_hangs, run_input, warm_up
from fuzz_decoders import DECODERS

pytestmark = pytest.mark.ci  # the decoders of data need pyarrow, which is a second in each worker
KEPT = sorted(path for path in CASES.glob("*/*") if path.is_file())


@pytest.fixture(autouse=True)
def _interrupt() -> Iterator[None]:
    before = catch_hangs()
    yield
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_kept_input_is_decoded_or_refused_by_name(path: Path) -> None:
    """Within a second, and with no other error than the decoder's own."""
    decoder = DECODERS[path.parent.name]
    warm_up(decoder)
    assert run_input(decoder, path.read_bytes())[0] == ""


@pytest.mark.parametrize("name", DECODERS)
def test_the_inputs_to_start_from_reach_the_decoder(name: str) -> None:
    """A seed that every mutation of is refused at once would test nothing: all of them decode without a crash."""
    warm_up(DECODERS[name])
    for data in DECODERS[name].seeds():
        assert run_input(DECODERS[name], data)[0] == ""
