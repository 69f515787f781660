"""Installed packages become wheels again, and wheels become the same packages on a node."""

import importlib.metadata
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from small_wheels import SITE, install, make_venv, make_wheel, pip_install, run_python

from aboard.agent.packages.installed_packages import PENDING, describe_packages, normalize_name
from aboard.agent.packages.wheel_install import BadWheel, install_wheel, remove_package
from aboard.commands.sync.environment.installed_distributions import read_environment
from aboard.commands.sync.environment.wheel_packing import PackedWheel, pack_distribution
from aboard.diagnoses import AboardError

FILES = {
    "tiny/__init__.py": "def main():\n    print('tiny ran')\n",
    "tiny/data file.txt": 'a, "b"\n',
    "tiny/_vendor/other-1.0.dist-info/RECORD": "of a vendored package\n",
    "tiny-1.0.data/scripts/tiny-script": "#!python\nimport tiny\ntiny.main()\n",
    "tiny-1.0.data/data/share/tiny/doc.txt": "doc\n",
}
ENTRY_POINTS = "[console_scripts]\ntiny-entry = tiny:main\n"


def pack(venv: Path, cache: Path) -> dict[str, PackedWheel]:
    contents = read_environment(venv, venv / SITE)
    return {each.package: pack_distribution(each, cache, venv, SITE) for each in contents.distributions}


def site_files(venv: Path) -> dict[str, str]:
    """The files of an environment, as text; compiled ones and those of the environment itself are left out."""
    found = {str(path.relative_to(venv)): path for path in sorted(venv.rglob("*")) if path.is_file()}
    return {
        name: path.read_text()
        for name, path in found.items()
        if not name.startswith(("bin/activate", "bin/Activate", "bin/python", "pyvenv")) and "__pycache__" not in name
    }


@pytest.mark.ci
def test_a_package_that_pip_installed_comes_back(tmp_path: Path) -> None:
    """Modules, data, scripts and entry points work after packing, on a node as with the real pip."""
    head, cache = make_venv(tmp_path / "head"), tmp_path / "cache"
    pip_install(head, make_wheel(tmp_path, "tiny", "1.0", FILES, ENTRY_POINTS))
    (head / SITE / "tiny/__init__.py").write_text("def main():\n    print('edited')\n")
    wheel = pack(head, cache)["tiny"]
    with zipfile.ZipFile(cache / wheel.file) as archive:
        names = archive.namelist()
        assert archive.read("tiny-1.0.data/scripts/tiny-script").startswith(b"#!python\n")
    assert "tiny-1.0.data/data/share/tiny/doc.txt" in names
    assert "tiny/_vendor/other-1.0.dist-info/RECORD" in names
    assert not [name for name in names if name.endswith(".pyc")]
    for number, put in enumerate((lambda venv, path: install_wheel(str(venv), SITE, str(path)), pip_install)):
        node = make_venv(tmp_path / f"node{number}")
        put(node, cache / wheel.file)
        for script in ("tiny-script", "tiny-entry"):
            assert subprocess.check_output([node / "bin" / script], text=True) == "edited\n"
        assert (node / "share/tiny/doc.txt").read_text() == "doc\n"
    found = describe_packages(str(tmp_path / "node0" / SITE))
    assert found == {"tiny": {"version": "1.0", "record": found["tiny"]["record"], "broken": 0}}


def test_the_record_of_a_node_is_known_before_it_is_installed(tmp_path: Path) -> None:
    """What a node reports after the installation is what the head computed when it packed."""
    head, cache = make_venv(tmp_path / "venv"), tmp_path / "cache"
    install(head, "tiny", "1.0", FILES, ENTRY_POINTS)
    wheel = pack(head, cache)["tiny"]
    head.rename(tmp_path / "away")
    make_venv(head)
    install_wheel(str(head), SITE, str(cache / wheel.file))
    assert describe_packages(str(head / SITE))["tiny"]["record"] == wheel.record
    (head / SITE / "tiny/__init__.py").write_text("shorter")
    (head / "bin/tiny-script").unlink()
    assert describe_packages(str(head / SITE))["tiny"]["broken"] == 2


def test_the_same_files_give_the_same_wheel(tmp_path: Path) -> None:
    """Packing again takes the cached wheel; another cache gets the same bytes; a changed file gives another wheel."""
    head = make_venv(tmp_path / "venv")
    install(head, "tiny", "1.0", FILES)
    first = pack(head, tmp_path / "a")["tiny"]
    stamp = (tmp_path / "a" / first.file).stat().st_mtime_ns
    with zipfile.ZipFile(tmp_path / "a" / first.file) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert pack(head, tmp_path / "a")["tiny"] == first
    assert (tmp_path / "a" / first.file).stat().st_mtime_ns == stamp
    assert pack(head, tmp_path / "b")["tiny"] == first
    (head / SITE / "tiny/__init__.py").write_text("changed = 1\n")
    changed = pack(head, tmp_path / "a")["tiny"]
    assert (changed.sha256 != first.sha256, changed.record != first.record) == (True, True)


@pytest.mark.parametrize("kind", ["pth", "finder"])
def test_an_editable_installation_is_copied(tmp_path: Path, kind: str) -> None:
    """Nodes get the project's packages, without its tests, its caches or the link to its directory."""
    head, project = make_venv(tmp_path / "venv"), tmp_path / "project"
    (project / "my_pkg/sub").mkdir(parents=True)
    (project / "my_pkg/__init__.py").write_text("value = 7\n")
    (project / "my_pkg/sub/data.json").write_text("{}")
    (project / "my_pkg/__pycache__").mkdir()
    (project / "my_pkg/__pycache__/x.pyc").write_text("")
    (project / "tests").mkdir()
    (project / "tests/__init__.py").write_text("")
    (project / "setup.py").write_text("")
    mapping = {"my_pkg": str(project / "my_pkg")}
    links = {
        "pth": {"_my_pkg.pth": f"{project}\n"},
        "finder": {
            "__editable__.my_pkg-0.1.pth": "import __editable___my_pkg_0_1_finder; install()\n",
            "__editable___my_pkg_0_1_finder.py": f"MAPPING: dict[str, str] = {mapping!r}\n",
        },
    }
    origin = {"url": f"file://{project}", "dir_info": {"editable": True}}
    install(head, "my-pkg", "0.1", links[kind])
    metadata = next((head / SITE).glob("*.dist-info"))
    (metadata / "direct_url.json").write_text(json.dumps(origin))
    contents = read_environment(head, head / SITE)
    assert [each.project for each in contents.distributions] == [str(project)]
    assert contents.loose == ()
    names = [file.name for file in contents.distributions[0].files if ".dist-info" not in file.name]
    assert names == ["my_pkg/__init__.py", "my_pkg/sub/data.json"]
    wheel = pack(head, tmp_path / "cache")["my-pkg"]
    node = make_venv(tmp_path / "node")
    install_wheel(str(node), SITE, str(tmp_path / "cache" / wheel.file))
    (project / "my_pkg/__init__.py").unlink()
    assert run_python(node, "import my_pkg; print(my_pkg.value)") == "7"


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    """A package without RECORD is refused by name with a command; loose files are listed."""
    head = make_venv(tmp_path / "venv")
    install(head, "tiny", "1.0", FILES)
    (head / SITE / "mine.pth").write_text("/somewhere\n")
    assert read_environment(head, head / SITE).loose == ("mine.pth",)
    (head / SITE / "old-2.0.egg-info").mkdir()
    (head / SITE / "tiny-1.0.dist-info/RECORD").unlink()
    with pytest.raises(AboardError, match="RECORD lists the files of old, tiny in") as raised:
        read_environment(head, head / SITE)
    assert raised.value.code == "env-package"
    assert raised.value.fix == f"{head}/bin/python -m pip install --force-reinstall --no-deps old tiny"


def test_another_version_replaces_the_first(tmp_path: Path) -> None:
    """Files of the old version go, those of the new one come; removing leaves nothing of the package."""
    venv = make_venv(tmp_path / "venv")
    before = site_files(venv)
    install(venv, "tiny", "1.0", {**FILES, "tiny/old/gone.py": "x = 1\n"})
    run_python(venv, "import tiny.old.gone")
    install(venv, "tiny", "2.0", {"tiny/__init__.py": "new = 1\n"})
    assert sorted(set(site_files(venv)) - set(before)) == [
        f"{SITE}/tiny-2.0.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL")
    ] + [f"{SITE}/tiny/__init__.py"]
    assert not (venv / SITE / "tiny/old").exists()
    remove_package(str(venv), SITE, "tiny")
    assert list((venv / SITE).iterdir()) == []
    assert site_files(venv) == before


def test_an_interrupted_installation_is_seen_and_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until everything is written, the package counts as broken and its metadata has a name that Python ignores."""
    venv = make_venv(tmp_path / "venv")
    install(venv, "tiny", "1.0", {"tiny/__init__.py": "", "tiny/first.py": ""})
    wheel = make_wheel(tmp_path, "tiny", "2.0", {"tiny/__init__.py": "", "tiny/a.py": "", "tiny/b.py": ""})
    replaced = os.replace

    def fail_at_b(source: str, target: str) -> None:
        if target.endswith("b.py"):
            raise OSError(28, "No space left on device", target)
        replaced(source, target)

    monkeypatch.setattr(os, "replace", fail_at_b)
    with pytest.raises(OSError, match="No space left"):
        install_wheel(str(venv), SITE, str(wheel))
    assert describe_packages(str(venv / SITE))["tiny"]["broken"]
    assert all(path.name.startswith(PENDING) for path in (venv / SITE).glob("*.dist-info"))
    monkeypatch.undo()
    install_wheel(str(venv), SITE, str(wheel))
    assert describe_packages(str(venv / SITE))["tiny"]["broken"] == 0
    assert sorted(path.name for path in (venv / SITE / "tiny").iterdir()) == ["__init__.py", "a.py", "b.py"]
    assert [path.name for path in (venv / SITE).glob("*.dist-info")] == ["tiny-2.0.dist-info"]
    (venv / SITE / "tiny-2.0.dist-info").rename(venv / SITE / "~~tiny-2.0.dist-info")
    assert describe_packages(str(venv / SITE))["tiny"]["broken"]
    (venv / SITE / "~~begun-1.0.dist-info").mkdir()
    for package in ("tiny", "begun"):
        remove_package(str(venv), SITE, package)
    assert list((venv / SITE).iterdir()) == []


def test_nothing_outside_of_the_environment_is_touched(tmp_path: Path) -> None:
    """Neither a wheel's names, nor a RECORD, nor a link in the environment leads out of it."""
    venv, outside = make_venv(tmp_path / "venv"), tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.py").write_text("mine")
    for name in ("../../../../outside/evil.py", "/etc/evil.py", "tiny-1.0.data/data/../../../evil"):
        with pytest.raises(BadWheel, match="leads out"):
            install_wheel(str(venv), SITE, str(make_wheel(tmp_path, "tiny", "1.0", {name: "evil"})))
    (venv / SITE / "tiny").symlink_to(outside)
    with pytest.raises(OSError, match="leads out"):
        install_wheel(str(venv), SITE, str(make_wheel(tmp_path, "tiny", "1.0", {"tiny/mine.py": "evil"})))
    (venv / SITE / "tiny").unlink()
    install(venv, "tiny", "1.0", {"tiny.py": ""})
    with (venv / SITE / "tiny-1.0.dist-info/RECORD").open("a") as record:
        record.write("../../../../outside/mine.py,,\n")
    remove_package(str(venv), SITE, "tiny")
    assert (outside / "mine.py").read_text() == "mine"


@pytest.mark.ci
def test_the_metadata_of_every_package_here_can_be_packed(tmp_path: Path) -> None:
    """Descriptions have lines such as `Version: 30`, as that of distro 1.9.0: only the headers count."""
    prefix, cache = tmp_path / "venv", tmp_path / "cache"
    tricky = "Metadata-Version: 2.1\nName: tricky\nVersion: 1.9.0\n\n```\nName: Fedora, 30\nVersion: 30, x\n```\n"
    texts = {"tricky-1.9.0.dist-info": tricky}
    wanted = {"tricky": "1.9.0"}
    for each in importlib.metadata.distributions():
        text = each.read_text("METADATA")
        if text is not None and each.read_text("RECORD") is not None:
            wanted[normalize_name(each.name)] = each.version
            texts[f"{each.name.replace('-', '_')}-{each.version}.dist-info"] = text
    for folder, text in texts.items():
        (prefix / SITE / folder).mkdir(parents=True)
        (prefix / SITE / folder / "METADATA").write_text(text)
        (prefix / SITE / folder / "RECORD").write_text(f"{folder}/METADATA,,\n{folder}/RECORD,,\n")
    assert {name: wheel.version for name, wheel in pack(prefix, cache).items()} == wanted
