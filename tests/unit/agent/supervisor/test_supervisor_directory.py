"""Where a supervisor lives: a directory that only its user can enter, and that is gone with the run."""

import os
import stat
from pathlib import Path

import pytest

from aboard.agent import run_directory


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A base of the test's own instead of the user's one."""
    path = tmp_path / "base"
    monkeypatch.setattr(run_directory, "_base_directory", lambda: str(path))
    return path


def test_asking_makes_no_directory(base: Path) -> None:
    """Only a supervisor that begins makes one, so that nothing is left where nothing was held."""
    with pytest.raises(FileNotFoundError):
        run_directory.resolve_directory("a-run")
    assert not base.exists()


def test_the_last_run_takes_the_base_along(base: Path) -> None:
    """And one that is not the last leaves the other's alone."""
    first, second = run_directory.make_directory("a-run"), run_directory.make_directory("b-run")
    Path(first, "supervisor.log").touch()
    run_directory.remove_directory(first)
    assert [path.name for path in base.iterdir()] == ["b-run"]
    run_directory.remove_directory(second)
    run_directory.remove_directory(second)
    assert not base.exists()


def test_a_run_has_one_place(base: Path) -> None:
    """A second supervisor for the same run is refused by its directory."""
    run_directory.make_directory("a-run")
    with pytest.raises(FileExistsError):
        run_directory.make_directory("a-run")


@pytest.mark.parametrize("run", ["", ".", "..", ".hidden", "a/b", "a\0b", "x" * 65, "\u00e9"])
def test_a_run_id_can_not_climb_out(base: Path, run: str) -> None:
    """Nor be longer than the path of a socket may be."""
    with pytest.raises(run_directory.UnsafePlace, match="not a run id"):
        run_directory.make_directory(run)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_place_that_others_can_enter_is_not_used(base: Path, mode: int) -> None:
    """Whoever could put a socket there could be taken for a supervisor: the run goes to a private place beside it."""
    base.mkdir()
    base.chmod(mode)
    (base / "b-run").mkdir()
    run = Path(run_directory.make_directory("a-run"))
    assert run.parent.name.startswith("base.")
    assert (run.parent.stat().st_mode & 0o777, run.stat().st_mode & 0o777) == (0o700, 0o700)
    assert run_directory.resolve_directory("a-run") == str(run)
    assert run_directory.list_runs() == ["a-run"]
    assert run_directory.describe_intruder() == {
        "path": str(base),
        "uid": os.getuid(),
        "mode": stat.filemode(base.stat().st_mode),
    }
    with pytest.raises(FileExistsError):
        run_directory.make_directory("a-run")
    run_directory.remove_directory(str(run))
    assert not run.parent.exists()


def test_a_link_in_its_stead_is_not_followed(base: Path, tmp_path: Path) -> None:
    """It may point to where someone else looks on."""
    (tmp_path / "elsewhere").mkdir(0o700)
    base.symlink_to(tmp_path / "elsewhere")
    assert Path(run_directory.make_directory("a-run")).parent.name.startswith("base.")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_runs_are_found_in_both_places(base: Path) -> None:
    """One that began while the usual place was taken, and one that began when it was free again."""
    base.touch()
    first = run_directory.make_directory("a-run")
    base.unlink()
    base.mkdir(0o700)
    second = run_directory.make_directory("b-run")
    assert Path(second).parent == base
    assert run_directory.list_runs() == ["a-run", "b-run"]
    assert [run_directory.resolve_directory(run) for run in ("a-run", "b-run")] == [first, second]
    with pytest.raises(FileExistsError):
        run_directory.make_directory("a-run")
    assert run_directory.describe_intruder() is None


def test_folders_inside_go_too_and_links_are_not_followed(base: Path, tmp_path: Path) -> None:
    """A run's beacon has a folder of its own, in which Python leaves another; what a link points to is not ours."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    run = Path(run_directory.make_directory("a-run"))
    (run / "beacon" / "__pycache__").mkdir(parents=True)
    (run / "beacon" / "__pycache__" / "x.pyc").touch()
    (run / "link").symlink_to(kept)
    run_directory.remove_directory(str(run))
    assert not base.exists()
    assert (kept / "file").exists()
