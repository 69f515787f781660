"""Builds small wheels and virtual environments without a network."""

import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import aboard
from aboard.agent.packages.wheel_install import format_record, hash_record_entry, install_wheel

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def make_venv(path: Path, *options: str) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *options, str(path)], check=True)
    return path


def list_outer_packages() -> list[str]:
    """What `--system-site-packages` does not give to a new environment: the packages of the one that runs the tests."""
    return [] if sys.prefix == sys.base_prefix else [path for path in sys.path if path.endswith("site-packages")]


def write_base_python_script(path: str) -> str:
    """A shell script that makes an interpreter with all packages that the tests have, and no virtual environment.

    The machine's own interpreter usually has none of them.
    """
    library = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    packages = [path for path in sys.path if path.endswith("site-packages")]
    places = shlex.join([*packages, *(str(Path(each).parent) for each in aboard.__path__)])
    return f"""mkdir -p {path}/bin {path}/{SITE} && cp {os.path.realpath(sys.executable)} {path}/bin/python3 &&
        for each in {sys.base_prefix}/{library}/*; do
            [ "${{each##*/}}" = site-packages ] || ln -s "$each" {path}/{library} || exit
        done && printf '%s\\n' {places} > {path}/{SITE}/outer.pth"""


def make_full_venv(path: Path) -> Path:
    """An environment with all packages that the tests have."""
    outer = list_outer_packages()
    if not outer:
        return make_venv(path, "--system-site-packages")
    install(made := make_venv(path), "outer", "1.0", {"outer.pth": "\n".join(outer)})
    return made


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, str], entry_points: str = "") -> Path:
    """A wheel with these files; the names of scripts and data start with `NAME-VERSION.data/`."""
    metadata = f"{name}-{version}.dist-info"
    contents = {
        **files,
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{metadata}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{metadata}/entry_points.txt": entry_points} if entry_points else {}),
    }
    rows = [(path, hash_record_entry(text.encode()), str(len(text.encode()))) for path, text in contents.items()]
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
        archive.writestr(f"{metadata}/RECORD", format_record([*rows, (f"{metadata}/RECORD", "", "")]))
    return wheel


def install(venv: Path, name: str, version: str, files: Mapping[str, str], entry_points: str = "") -> None:
    """Installs a package into an environment, as quickly as possible."""
    wheel = make_wheel(venv.parent / "made", name, version, files, entry_points)
    install_wheel(str(venv), SITE, str(wheel))


def pip_install(venv: Path, wheel: Path) -> None:
    """Installs with the real pip."""
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "-q", "--no-index", "--no-deps",
         str(wheel)],
        check=True,
    )  # fmt: skip


def run_python(venv: Path, code: str) -> str:
    return subprocess.run(
        [str(venv / "bin/python"), "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()
