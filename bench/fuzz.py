"""Fuzzes every decoder of bytes from outside: no crash, no input that takes over 1 s or 200 MB.

    python bench/fuzz.py [--quick] [--only NAME] [--seconds N] [--seed N] [--json FILE]

Each decoder runs in a process of its own, two at a time. An input that fails is made smaller and kept in
tests/cases/fuzz/NAME, which tests/unit/test_fuzz_cases.py replays.
"""

import argparse
import json
import os
import random
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, process_time
from typing import Any

from figures import Figures
from fuzz_decoders import DECODERS, TESTS, Decoder

CASES = TESTS / "cases" / "fuzz"
MOST_SECONDS = 1.0
MOST_BYTES = 200 << 20
FULL_SECONDS = 600.0
_LONGEST = 64 << 10
_MOST_FOUND = 5
_ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 2**64, 10**30, 1e308, 0.5, "", " ", "\x00", "\ud800", "\x1b[2J", "a" * 10_000),
    *("1" * 5000, "../../x", "/etc/passwd", "-rf", "$(x)", "9" * 400, "nan", "\u0661", [], {}, [[]], [{}], [None]),
    *({"": None}, [0] * 2000),
)
_TOKENS = (
    *(b"\x00", b"\xff\xfe", b"\n", b"\r\n", b"\x1b[31m", b"[", b"]", b"{", b"}", b'"', b"'", b"\\", b"$(", b"`", b"<<"),
    *(b"${", b"&x", b"*x", b"!!", b": ", b"- ", b"=", b"%", b"0", b"-1", b"9" * 30, b"9" * 5000, b"1-99999999", b"\t"),
    *(b"[1-9999999]", b"(x99999999)", b"null", b"true", b"1e999", b"NaN", "\u0661\u00b2".encode(), b" " * 500, b"#"),
    *(b"a" * 3000, b"@", b":", b"/", b"..", b"--", b"=\n"),
)


class _HangError(BaseException):
    pass


@dataclass(frozen=True, kw_only=True)
class Fuzzed:
    """What became of one decoder's inputs; `found` are the failures, each with the input that causes it."""

    name: str
    inputs: int
    seconds: float
    slowest: float
    peak: int
    found: tuple[tuple[str, bytes], ...]


def run_input(decoder: Decoder, data: bytes) -> tuple[str, float]:
    """How the decoder failed ("" if it didn't), and the processor time that it took."""
    began = process_time()
    failure = ""
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
        decoder.run(data)
    except decoder.errors:
        pass
    except _HangError:
        failure = f"more than {MOST_SECONDS:g} s"
    except MemoryError:
        failure = "more than 200 MB"
    except Exception as error:  # noqa: BLE001 - what the decoder doesn't declare is what we look for
        frame = _find_last_frame(error)
        failure = f"{type(error).__name__} at {frame}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return failure, process_time() - began


def warm_up(decoder: Decoder) -> None:
    """Imports what the decoder needs, without a limit."""
    for data in decoder.seeds():
        with suppress(Exception):
            decoder.run(data)


def fuzz(name: str, seconds: float, seed: int) -> Fuzzed:
    """Runs mutated inputs for so many seconds; memory is limited for the whole process."""
    decoder, draw = DECODERS[name], random.Random(f"{name} {seed}")  # noqa: S311 - no secrets
    seeds = decoder.seeds() or [b""]
    catch_hangs()
    warm_up(decoder)
    limit_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found: dict[str, bytes] = {}
    began, count, slowest = monotonic(), 0, 0.0
    while monotonic() - began < seconds and len(found) < _MOST_FOUND:
        data = mutate(seeds, draw)
        failure, took = run_input(decoder, data)
        count += 1
        slowest = max(slowest, took)
        if failure and failure not in found:
            found[failure] = minimise(decoder, data, failure)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return Fuzzed(
        name=name, inputs=count, seconds=monotonic() - began, slowest=slowest, peak=peak, found=tuple(found.items())
    )


def _fuzz(arguments: tuple[str, float, int]) -> Fuzzed:
    return fuzz(*arguments)


def limit_memory() -> None:
    """Limits this process to 200 MB more than it has now."""
    pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    limit = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def mutate(seeds: list[bytes], draw: random.Random) -> bytes:
    data = draw.choice(seeds)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if value is not None and draw.random() < 0.7:
        for _ in range(draw.choice((1, 1, 2, 4))):
            value = _mutate_value(value, draw)
        data = json.dumps(value).encode()
        if draw.random() < 0.8:
            return data[:_LONGEST]
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        data = _mutate_bytes(data, draw.choice(seeds), draw)
    return data[:_LONGEST]


def minimise(decoder: Decoder, data: bytes, failure: str) -> bytes:
    """A smaller input with the same failure: parts are left out while it remains."""
    size = max(1, len(data) // 2)
    deadline = monotonic() + 20
    while size and monotonic() < deadline:
        at = 0
        while at < len(data) and monotonic() < deadline:
            less = data[:at] + data[at + size :]
            if run_input(decoder, less)[0] == failure:
                data = less
            else:
                at += size
        size //= 2
    return data


def _mutate_value(value: Any, draw: random.Random) -> Any:
    """The value with one place in it changed, at any depth."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        changed = {**value, key: _mutate_value(value[key], draw)}
        if draw.random() < 0.1:
            del changed[key]
        return changed
    if isinstance(value, list) and value and draw.random() < 0.85:
        at = draw.randrange(len(value))
        if draw.random() < 0.1:
            return value * draw.choice((0, 2, 50))
        return [*value[:at], _mutate_value(value[at], draw), *value[at + 1 :]]
    if isinstance(value, str) and draw.random() < 0.3:
        return value + draw.choice(_TOKENS).decode("latin-1")
    odd = draw.choice(_ODD)
    if draw.random() < 0.02:
        for _ in range(draw.choice((50, 400))):
            odd = [odd]
    return odd


def _mutate_bytes(data: bytes, other: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    end = min(len(data), at + draw.choice((1, 4, 40, 400)))
    start = draw.randrange(len(other) + 1)
    middle = draw.choice(
        (
            b"",
            draw.choice(_TOKENS),
            draw.choice(_TOKENS) + data[at:end],
            data[at:end] * draw.choice((2, 4, 100)),
            other[start : start + 200],
            bytes([draw.randrange(256)]),
        )
    )
    return data[:at] + middle + (data[end:] if draw.random() < 0.9 else b"")


def catch_hangs() -> Any:
    """Lets `run_input` interrupt this process; returns the handler before."""
    return signal.signal(signal.SIGVTALRM, _raise_hang)


def _raise_hang(*_: object) -> None:
    raise _HangError


def _find_last_frame(error: BaseException) -> str:
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/aboard/" in file or not place:
            place = f"{Path(file).name}:{trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return place


def keep(name: str, data: bytes) -> Path:
    """Keeps an input as a case that CI replays."""
    path = CASES / name / sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every decoder of bytes from outside.")
    parser.add_argument("--only", choices=list(DECODERS), action="append", help="only this decoder")
    parser.add_argument("--quick", action="store_true", help="a second for each; takes at most 60 s")
    parser.add_argument("--seconds", type=float, help=f"for each decoder; default: {FULL_SECONDS:g}")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    seconds = options.seconds or (1.0 if options.quick else FULL_SECONDS)
    names = options.only or list(DECODERS)
    print(f"seed {options.seed}, {seconds:g} s for each of {len(names)} decoders")
    print(f"{'decoder':<26} {'inputs':>9} {'per s':>8} {'slowest':>9} {'memory':>9}  failures")
    results = []
    # Forked, and one for each decoder: the memory limit counts from what the imports took.
    with get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        for result in pool.imap(_fuzz, [(name, seconds, options.seed) for name in names], chunksize=1):
            results.append(result)
            print(
                f"{result.name:<26} {result.inputs:>9,} {result.inputs / max(result.seconds, 1e-9):>8,.0f}"
                f" {result.slowest:>7.2f} s {result.peak >> 20:>6} MB  {len(result.found)}",
                flush=True,
            )
            for failure, data in result.found:
                print(f"    {failure}: {keep(result.name, data).relative_to(TESTS.parent)}")
    figures = Figures("fuzz")
    figures.add("failures of all decoders", sum(len(each.found) for each in results), 0)
    figures.add("slowest input", max(each.slowest for each in results), MOST_SECONDS, unit="s")
    figures.add("most memory of a decoder", max(each.peak for each in results) / 1e6, MOST_BYTES / 1e6, unit="MB")
    return figures.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
