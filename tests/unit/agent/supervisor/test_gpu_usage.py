"""GPU figures from nvidia-smi, whose output is recorded: no GPU is at hand."""

import os
from pathlib import Path

import pytest
from deadlines import wait_until

from aboard.agent.event_loop import EventLoop
from aboard.agent.supervisor import gpu_usage
from aboard.agent.supervisor.gpu_usage import GpuSampler, parse_gpu_line

# nvidia-smi 550 on two H100, one of which shows no power.
RECORDED = "0, 97, 40536, 81559, 512.32, 61\n1, 0, 4, 81559, [N/A], 33\n"
MIB = 1 << 20


def test_lines_of_nvidia_smi_are_read() -> None:
    first, second = (parse_gpu_line(line) for line in RECORDED.splitlines())
    assert first == (0, [97.0, 40536.0 * MIB, 81559.0 * MIB, 512.32, 61.0])
    assert second == (1, [0.0, 4.0 * MIB, 81559.0 * MIB, None, 33.0])


@pytest.mark.parametrize(
    "line",
    ["", "No devices were found", "0, 97", "x, 1, 2, 3, 4, 5", "0, 1, 2, 3, 4, 5, 6", "Failed to initialize NVML"],
)
def test_other_text_is_no_gpu(line: str) -> None:
    assert parse_gpu_line(line) is None


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e300", "[Not Supported]", "[Unknown Error]"])
def test_a_value_that_is_no_number_is_unknown(value: str) -> None:
    assert parse_gpu_line(f"3, {value}, 1, 1, 1, 1") == (3, [None, MIB, MIB, 1.0, 1.0])


def make_sampler(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> tuple[EventLoop, GpuSampler]:
    """A sampler that finds this program as nvidia-smi, at once, on a machine that seems to have the driver."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(gpu_usage, "DRIVER", str(tmp_path))
    monkeypatch.setattr(gpu_usage, "SECONDS", 0)
    loop = EventLoop()
    sampler = GpuSampler(loop)
    assert sampler.read() == []
    return loop, sampler


def run_until(loop: EventLoop, done: str, sampler: GpuSampler) -> None:
    """Runs the loop until there are figures, or none any more."""

    def check() -> None:
        if bool(sampler.read()) is (done == "figures") and sampler._pid > 0:
            loop.stop()
        loop.later(0.01, check)

    check()
    loop.later(30.0, loop.stop)
    loop.run()


def test_figures_come_from_a_program_beside_the_ranks_and_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, sampler = make_sampler(tmp_path, f"printf '{RECORDED}'; exec sleep 300", monkeypatch)
    run_until(loop, "figures", sampler)
    assert sampler.read() == [
        [97.0, 40536.0 * MIB, 81559.0 * MIB, 512.32, 61.0],
        [0.0, 4.0 * MIB, 81559.0 * MIB, None, 33.0],
    ]
    sampler.close()
    assert sampler.read() == []
    wait_until(lambda: os.waitpid(sampler._pid, os.WNOHANG)[0] != 0, 10, "nvidia-smi is gone")


def test_one_that_hangs_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken driver makes nvidia-smi hang: the loop goes on, and there are no figures."""
    loop, sampler = make_sampler(tmp_path, "exec sleep 300", monkeypatch)
    loop.later(0.3, loop.stop)
    loop.run()
    assert sampler.read() == []
    sampler.close()
    wait_until(lambda: os.waitpid(sampler._pid, os.WNOHANG)[0] != 0, 10, "nvidia-smi is gone")
