"""The tables of flags against the real launchers' parsers, as scripts/launchers recorded them."""

from pathlib import Path

import pytest

from aboard.core.launchers import deepspeed, torchrun
from aboard.core.launchers.accelerate import accelerate_flags
from aboard.core.launchers.containers import apptainer_flags, docker_flags
from aboard.core.launchers.flag_parser import FlagGrammar
from aboard.core.launchers.flag_table import FlagHandling, FlagValueKind
from aboard.core.launchers.slurm import sbatch, srun

RECORDED = Path(__file__).parents[2] / "golden" / "paste" / "flags"
GRAMMARS = {
    "deepspeed": deepspeed.GRAMMAR,
    "torchrun": torchrun.GRAMMAR,
    "accelerate": accelerate_flags.GRAMMAR,
    "srun": srun.GRAMMAR,
    "sbatch": sbatch.GRAMMAR,
    "apptainer": apptainer_flags.GRAMMAR,
    "podman": docker_flags.PODMAN_GRAMMAR,
}


def recorded(name: str) -> dict[str, str]:
    """Every spelling that the launcher takes, with VALUE if a value stands behind it, OPTIONAL if one may."""
    lines = [line.split() for line in (RECORDED / f"{name}.txt").read_text("utf-8").splitlines()[1:]]
    return {word: line[-1] for line in lines for word in line if word.startswith("-")}


@pytest.mark.parametrize("name", GRAMMARS)
def test_every_flag_of_the_launcher_is_in_the_table(name: str) -> None:
    """A flag that the real launcher takes is never unknown here, and takes a value if it does there."""
    takes = {FlagValueKind.NOTHING: "NOTHING", FlagValueKind.OPTIONAL: "OPTIONAL"}
    known = {word: takes.get(flag.takes, "VALUE") for word, flag in GRAMMARS[name].spellings().items()}
    real = {word: "NOTHING" if last.startswith("-") else last for word, last in recorded(name).items()}
    assert {word: known.get(word) for word in real} == real


# Podman's table has Docker's flags too, of which Podman hides some.
@pytest.mark.parametrize("name", [name for name in GRAMMARS if name != "podman"])
def test_no_flag_of_the_table_is_invented(name: str) -> None:
    """A flag of the table is one that the launcher has, at least in one of its spellings."""
    real = recorded(name)
    assert [
        flag.names for flag in GRAMMARS[name].flags if not set(_spelled(GRAMMARS[name], *flag.names)) & set(real)
    ] == []


def test_former_flags_are_no_present_ones() -> None:
    """What is kept from older versions of DeepSpeed is gone from the recorded one."""
    assert not {name for flag in deepspeed.FORMER_FLAGS for name in flag.names} & set(recorded("deepspeed"))


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_is_not_obeyed_says_why(name: str) -> None:
    """A flag that Aboard makes needless has a note, and one that is refused has a reason and what to type."""
    for flag in GRAMMARS[name].flags:
        assert flag.handling is FlagHandling.OBEYED or flag.note, flag.names
        assert flag.handling is not FlagHandling.REFUSED or flag.fix, flag.names


def _spelled(grammar: FlagGrammar, *names: str) -> list[str]:
    both = [
        name for word in names for name in (word, "--" + word[2:].replace("-", "_"), "--" + word[2:].replace("_", "-"))
    ]
    return both if grammar.either_dash else list(names)
