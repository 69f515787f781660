"""The pages of examples/guides: what they claim, and their commands, typed on a sandbox's head as they stand."""

import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from deadlines import slowness
from small_wheels import list_outer_packages, make_wheel

from aboard.sandbox import Host, Sandbox
from aboard.sandbox.host_setup.system_files import CREW_HOME

GUIDES = Path(__file__).parents[2] / "examples" / "guides"
_CELL = r"\s*\**(\d+)\**\s*"
_ROW = re.compile(rf"^\|(?P<step>.*?)\|{_CELL}\|{_CELL}\|(?P<ours>.*)\|$", re.MULTILINE)
_OURS = re.compile(r"(\d+) commands?, (\d+) edits?")


@dataclass(frozen=True, kw_only=True)
class GuidePage:
    """A guide's page: the commands of its first listing, and the rows that count the guide's own work.

    `outside` is its script for the machine that the sandbox is on, which gives hosts what a guide's cloud has.

    Each row is (commands, edits); the last one is the sum that the page states. `ours` is what it states for Aboard.
    """

    name: str
    commands: tuple[str, ...]
    outside: str
    rows: tuple[tuple[int, int], ...]
    ours: tuple[int, int]

    def check_counts(self) -> None:
        """The sums are those of the rows, and Aboard's number of commands is that of the listing."""
        *steps, total = self.rows
        assert total == (sum(typed for typed, _ in steps), sum(edited for _, edited in steps)), self.name
        assert self.ours[0] == len(self.commands), self.commands
        assert self.ours < total


def read_guide_page(name: str) -> GuidePage:
    text = (GUIDES / name / "README.md").read_text("utf-8")
    (listing, *_) = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    lines = re.sub(r"^    ", "", listing, flags=re.MULTILINE).replace("\\\n", "\\\0")
    rows = [*_ROW.finditer(text)]
    (ours,) = _OURS.findall(rows[-1]["ours"])
    return GuidePage(
        name=name,
        commands=tuple(line.replace("\0", "\n") for line in lines.splitlines()),
        outside="\n".join(re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)),
        rows=tuple((int(row[2]), int(row[3])) for row in rows),
        ours=(int(ours[0]), int(ours[1])),
    )


class GuideRun:
    """A guide's folder on the head, with an active environment, as after the guide's first steps on one machine."""

    def __init__(
        self, box: Sandbox, name: str, *, env: Mapping[str, str] | None = None, wheel: Path | None = None
    ) -> None:
        self.box = box
        self.page = read_guide_page(name)
        self.folder = f"{CREW_HOME}/{name}"
        venv = f"{CREW_HOME}/venv"
        self._env = {"VIRTUAL_ENV": venv, "PATH": f"{venv}/bin:/usr/local/bin:/usr/bin:/bin", **(env or {})}
        _type_outside(self.page.outside, box)
        copy_folder(GUIDES / name, box.head, self.folder)
        self._create_environment(venv, wheel)

    def type(self, command: str, *, seconds: float = 300) -> str:
        """What the command prints; it must succeed."""
        code, said = self.try_typing(command, seconds=seconds)
        assert code == 0, f"$ {command}\n{said}"
        return said

    def try_typing(self, command: str, *, seconds: float = 300) -> tuple[int, str]:
        done = self.box.head.run(["bash", "-c", command], cwd=self.folder, env=self._env, timeout=seconds * slowness())
        return done.returncode, done.stdout + done.stderr

    def type_all(self) -> list[str]:
        """What each command of the page prints."""
        return [self.type(command) for command in self.page.commands]

    def _create_environment(self, venv: str, wheel: Path | None) -> None:
        """With a wheel, Aboard is installed there: `aboard sync --env` brings it to nodes, where jobs run it."""
        python = f"{sys.base_prefix}/bin/python3"
        # With packages of its own, it does without those of the system, which `aboard sync` would compare.
        system = "" if list_outer_packages() else "--system-site-packages"
        script = f"{python} -m venv --without-pip {system} {venv}"
        made = self.box.head.run(["sh", "-c", script], timeout=120 * slowness())
        assert made.returncode == 0, made.stderr
        for each in filter(None, (pack_outer_packages(), wheel)):
            install = f"{sys.executable} -m pip --python {venv}/bin/python install --quiet --no-index --no-deps"
            script = f"base64 -d > {each.name} && {install} {each.name} && rm {each.name}"
            content = b64encode(each.read_bytes()).decode()
            done = self.box.head.run(["sh", "-c", script], input=content, timeout=120 * slowness())
            assert done.returncode == 0, done.stderr


@cache
def pack_outer_packages() -> Path | None:
    """A wheel that gives to nodes what their image has: the packages of the environment that runs the tests.

    Bare hosts lack that environment, so its files are linked to the directory of the wheel. Call it before the hosts
    are built, which see no later change of the machine's files.
    """
    outer = list_outer_packages()
    if not outer:
        return None
    place = Path(tempfile.mkdtemp(dir=Path(sys.prefix).parent, prefix="aboard-packages-"))
    place.chmod(0o755)
    for number, path in enumerate(outer):
        subprocess.run(["cp", "-al", path, place / str(number)], check=True)
    return make_wheel(place, "outer", "1.0", {"outer.pth": "\n".join(f"{place}/{n}" for n in range(len(outer)))})


def _type_outside(script: str, box: Sandbox) -> None:
    """Types it as root on this machine, where `aboard` means this repository's."""
    aboard = f'aboard() {{ "{sys.executable}" -m aboard "$@"; }}\n'
    env = {**os.environ, "ABOARD_SANDBOX": box.name, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(["bash", "-ec", aboard + script], env=env, check=True, timeout=60 * slowness())


def build_aboard_wheel(directory: Path) -> Path:
    """A wheel of this repository's Aboard."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(directory)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(GUIDES.parents[1])], check=True, timeout=300)
    (wheel,) = directory.glob("*.whl")
    return wheel


def copy_folder(folder: Path, host: Host, target: str) -> None:
    """Puts the files of a folder on the host, as crew's."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.add(path, path.relative_to(folder), filter=_drop_owner)
    script = f"mkdir -p {target} && base64 -d | tar -xf - -C {target}"
    done = host.run(["sh", "-c", script], input=b64encode(held.getvalue()).decode())
    assert done.returncode == 0, done.stderr


def list_losses(said: str) -> list[float]:
    """The losses that the first rank printed, in their order."""
    return [float(loss) for loss in re.findall(r"step \d+ loss (\d+\.\d+)", said)]


def _drop_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info
