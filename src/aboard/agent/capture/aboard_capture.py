"""Hands a launcher to Aboard: runs in every Python of a script, and as the programs that replace launchers in PATH.

Any Python from 3.6 on runs it, and it imports nothing heavy before a launcher is found.
"""

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

# Imported by name from the same directory: on a node they are not part of a package.
launch_command = __import__("aboard_launch_command")
find_launch = launch_command.find_launch
resource_limits = __import__("aboard_resource_limits")
script_line = __import__("aboard_script_line")

SOCKET = "ABOARD_CAPTURE"
# The inodes of the pipes that the script's own output goes to.
PIPES = "ABOARD_CAPTURE_PIPES"
STREAMS = ((1, "stdout"), (2, "stderr"))
HEADER = 4
# The head's reply in place of an exit code: the program runs as it is.
RUN_ITSELF = -1
SRUN = "srun"
CONTAINERS = ("apptainer", "singularity", "docker", "podman")
SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")
MOST_PIPES = 8
MOST_BYTES = 1024 * 1024
MOST_FILES, FILE_BYTES = 16, 64 * 1024
# Options of the launchers whose files Aboard reads, without dashes.
FILE_OPTIONS = (
    "hostfile", "H", "config_file", "deepspeed_config_file", "deepspeed_hostfile", "deepspeed", "deepspeed_config",
)  # fmt: skip
# What Python code calls: the words that the call stands for, the function that gets parsed arguments, and their parser.
CALLS = {
    "torch.distributed.run": (["torchrun"], "run", "get_args_parser"),
    "torch.distributed.launch": (["python", "-m", "torch.distributed.launch"], "", ""),
    "accelerate.commands.launch": (["accelerate", "launch"], "launch_command", "launch_command_parser"),
    "deepspeed.launcher.runner": (["deepspeed"], "", ""),
}


def arm() -> None:
    """In every Python of the script, before its program: ends here if that is a launcher."""
    if SOCKET not in os.environ:
        return
    words = find_launch(_read_own_command_line())
    if words:
        _die_of_interrupts()
        # site would report a SystemExit as a fatal error.
        os._exit(capture_launcher(words, sys.executable))
    sys.meta_path.insert(0, CallHook())


def run_program(name: str, arguments: "list[str]") -> "NoReturn":
    """In place of a program that the shell found in our directory: what starts no ranks runs as it is."""
    real = _find_program(name)
    words = find_replaced([name, *arguments], real) if SOCKET in os.environ else []
    if words:
        _die_of_interrupts()
        code = capture_launcher(words, _find_python_of(words, real))
        if code != RUN_ITSELF:
            os._exit(code)
    if name == SRUN:
        _leave_capture()
    if not real:
        _complain("%s: command not found" % name)
        os._exit(127)
    os.execv(real, [real, *arguments])  # noqa: S606 - no shell is wanted here


def find_replaced(words: "list[str]", real: str) -> "list[str]":
    """The command that Aboard replaces; [] for one that runs as it is."""
    if words[0] in CONTAINERS:
        return words if any(find_launch(words[at:]) for at in range(2, len(words))) else []
    if words[0] != SRUN:
        return list(find_launch(words) or launch_command.find_start_elsewhere(words))
    is_question = not words[1:] or words[1] in ("-h", "--help", "--usage", "-V", "--version")
    in_job = real and "SLURM_JOB_ID" in os.environ
    return words if in_job and not is_question and not _is_read_by_shell() else []


def capture_launcher(words: "list[str]", python: str) -> int:
    """Waits until Aboard has run what the launcher would have started; returns the exit code."""
    try:
        return _exchange(_describe(words, python))
    except (OSError, ValueError) as error:
        _complain("aboard: %s was not started: %s" % (words[0], error))
        return 1


# -- the document and the reply ------------------------------------------------------------------------------------


def _describe(words: "list[str]", python: str) -> "dict[str, Any]":
    launcher = name_launcher(words)
    script, line = script_line.find_script_line(
        script_line.list_ancestors(os.getpid()), words[2 * (words[0] == "python")]
    )
    return {
        "launcher": launcher,
        "argv": words,
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "python": python,
        "files": _read_files(words, launcher),
        "limits": resource_limits.read_limits(),
        "script": script,
        "line": line,
        "streams": _list_redirected(),
    }


def _list_redirected() -> "list[str]":
    """The streams that the script sends elsewhere, as by `| tee` and `> log`: ranks' lines are printed there, too."""
    own = os.environ.get(PIPES, "").split()
    return [name for fd, name in STREAMS if _is_kept(fd) and str(os.fstat(fd).st_ino) not in own]


def _is_kept(fd: int) -> bool:
    """Whether it is open, and neither a terminal nor /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(fd).st_mode)
    except OSError:
        return False


def _is_read_by_shell() -> bool:
    """Whether a shell of the script reads what we print, as in `$(srun hostname | sort)`."""
    ancestors = script_line.list_ancestors(os.getpid())[1:]
    pipe = _read_link("/proc/self/fd/1")
    for _ in range(MOST_PIPES):
        readers = _list_readers(pipe) if pipe.startswith("pipe:") else []
        for pid in readers:
            if pid in ancestors:
                with open("/proc/%d/comm" % pid) as file:
                    return file.read().strip() in SHELLS
        if not readers:
            return False
        pipe = _read_link("/proc/%d/fd/1" % readers[0])
    return False


def _list_readers(pipe: str) -> "list[int]":
    """The other processes with the read end of a pipe."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        folder = "/proc/%d/fd/" % pid
        try:
            names = os.listdir(folder) if pid != os.getpid() else []
        except OSError:
            continue
        for name in names:
            if _read_link(folder + name) == pipe and _is_read_end("/proc/%d/fdinfo/%s" % (pid, name)):
                found.append(pid)
                break
    return found


def _is_read_end(path: str) -> bool:
    try:
        with open(path) as info:
            return int(info.read().split("flags:", 1)[1].split()[0], 8) & os.O_ACCMODE == os.O_RDONLY
    except (OSError, IndexError, ValueError):
        return False


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _leave_capture() -> None:
    """What srun starts on the nodes must find neither our programs nor our modules."""
    own = os.path.dirname(os.path.realpath(__file__))
    for name in (SOCKET, PIPES):
        os.environ.pop(name, None)
    for name in ("PATH", "PYTHONPATH"):
        rest = [part for part in os.environ.get(name, "").split(os.pathsep) if not _is_below(part, own)]
        if any(rest):
            os.environ[name] = os.pathsep.join(rest)
        else:
            os.environ.pop(name, None)


def _is_below(path: str, folder: str) -> bool:
    return bool(path) and (os.path.realpath(path) + os.sep).startswith(folder + os.sep)


def name_launcher(words: "Sequence[str]") -> str:
    """The launcher of a command, however it is started."""
    if words[0] in (SRUN, *CONTAINERS):
        return words[0]
    name = words[2] if words[:2] == ["python", "-m"] else words[0]
    first = name.partition(".")[0].partition("-")[0]
    if name == "torch.distributed.run":
        return "torchrun"
    return {"ds": "deepspeed", "torch": name}.get(first, first)


def _exchange(document: "dict[str, Any]") -> int:
    import json  # noqa: PLC0415 - not every Python of a script pays for it
    import socket  # noqa: PLC0415 - not every Python of a script pays for it

    body = json.dumps(document).encode("ascii")
    if len(body) > MOST_BYTES:
        raise ValueError("its arguments, environment and files take %d bytes, more than %d" % (len(body), MOST_BYTES))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET])
        connection.sendall(len(body).to_bytes(HEADER, "big") + body)
        reply = {"stdout": ""}
        while reply.keys() & {"stdout", "stderr"}:
            _print_lines(reply)
            size = int.from_bytes(_receive(connection, HEADER), "big")
            reply = json.loads(_receive(connection, min(size, MOST_BYTES)).decode("utf-8"))
    if "run" in reply:
        return RUN_ITSELF
    if "code" in reply:
        return int(reply["code"])
    raise ValueError(reply.get("refused"))


def _print_lines(reply: "dict[str, str]") -> None:
    """Prints what ranks have printed, as the launcher would; a reader that is gone ends nothing."""
    for fd, name in STREAMS:
        data = reply.get(name, "").encode("latin-1")
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError:
            pass


def _receive(connection: "Any", size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise OSError("the run has ended")
        data += part
    return data


def _read_files(words: "Sequence[str]", launcher: str) -> "dict[str, str]":
    """The texts of the files that the launcher would read, by the names that Aboard looks them up with."""
    paths = {}
    for word, following in zip(words, [*words[1:], ""]):
        option, equals, value = word.lstrip("-").partition("=")
        name = value if equals else following
        if word.startswith("-") and option.replace("-", "_") in FILE_OPTIONS:
            paths[name] = name
    if launcher == "accelerate":
        home = os.environ.get("HF_HOME", os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/huggingface")
        # Under its usual name as well: Aboard gets only those variables that the script has changed.
        for folder in (home, "~/.cache/huggingface"):
            paths[folder + "/accelerate/default_config.yaml"] = home + "/accelerate/default_config.yaml"
    if launcher in ("accelerate", "deepspeed"):
        name = os.environ.get("DS_ENV_FILE", ".deepspeed_env")
        places = ["/job/hostfile", *([name] if name.startswith("/") else ["~/" + name, "./" + name])]
        paths.update(zip(places, places))
    texts = [(name, _read_text(os.path.expanduser(path))) for name, path in list(paths.items())[:MOST_FILES]]
    return {name: text for name, text in texts if text is not None}


def _read_text(path: str) -> "str | None":
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        data = file.read(FILE_BYTES + 1)
    try:
        return data.decode("utf-8") if len(data) <= FILE_BYTES else None
    except UnicodeDecodeError:
        return None


# -- the launcher's own program and Python -------------------------------------------------------------------------


def _read_own_command_line() -> "list[str]":
    words = getattr(sys, "orig_argv", None)
    if words is None:
        # Before Python 3.10.
        with open("/proc/self/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    return list(words)


def _find_program(name: str) -> str:
    """Where the shell would have found it without us."""
    own = os.path.join(os.path.dirname(os.path.realpath(__file__)), "bin")
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", name)
        if os.path.realpath(folder or ".") != own and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def _find_python_of(words: "Sequence[str]", real: str) -> str:
    """The Python that the command would have started; "" for one in a container."""
    if words[0] != SRUN:
        return "" if words[0] in CONTAINERS else _find_python(real)
    for word in words[1:]:
        name = os.path.basename(word)
        if name in CONTAINERS:
            return ""
        if name.startswith("python") and not name[6:].strip("0123456789."):
            path = os.path.abspath(word) if os.sep in word else _find_program(word)
            return _ask_for_path(path) if path else ""
        if name in ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "ds"):
            program = os.path.abspath(word) if os.sep in word else _find_program(word)
            return _find_python(program) if program else ""
    return _find_python("")


def _find_python(program: str) -> str:
    """The Python that would have run this program: the one in its first lines, or the first one in PATH."""
    python = _read_interpreter(program) if program else ""
    if os.path.isabs(python) and os.access(python, os.X_OK):
        return python
    for name in (python, "python3", "python"):
        path = _find_program(os.path.basename(name)) if name else ""
        if path:
            # It may be a script that chooses a Python, such as pyenv's.
            return _ask_for_path(path)
    return ""


def _read_interpreter(program: str) -> str:
    """The Python of a `#!` line; of the second line where the first would be too long for the kernel."""
    import shlex  # noqa: PLC0415 - not every Python of a script pays for it

    try:
        with open(program, "rb") as file:
            lines = file.read(4096).decode("utf-8", "replace").splitlines()[:2]
        words = shlex.split(lines[0][2:]) if lines and lines[0].startswith("#!") else []
        if words and os.path.basename(words[0]) == "sh" and len(lines) > 1:
            words = shlex.split(lines[1])[1:]
    except (OSError, ValueError):
        return ""
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words and os.path.basename(words[0]).startswith("python") else ""


def _ask_for_path(python: str) -> str:
    import subprocess  # noqa: PLC0415 - not every Python of a script pays for it

    argv = [python, "-c", "import sys; print(sys.executable)"]
    try:
        ran = subprocess.run(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return python
    return os.fsdecode(ran.stdout).strip() or python


def _die_of_interrupts() -> None:
    """Python would raise a KeyboardInterrupt; what the shell told it to ignore stays ignored."""
    import signal  # noqa: PLC0415 - not every Python of a script pays for it

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _complain(text: str) -> None:
    # Also for a standard error that is closed, or has another encoding.
    try:  # noqa: SIM105 - contextlib costs each Python of a script 2 ms to import
        os.write(2, (text + "\n").encode("utf-8", "replace"))
    except OSError:
        pass


# -- calls from Python code ----------------------------------------------------------------------------------------


class CallHook:
    """Finds no module itself: replaces the functions that start ranks once another finder has imported a launcher."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in CALLS:
            return None
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is not None:
                _wrap_loader(spec.loader, name)
                return spec
        return None


def _wrap_loader(loader: "Any", name: str) -> None:
    """Patches the loader of this module instead of replacing it, so that its `__loader__` stays correct."""
    plain = loader.exec_module

    def exec_module(module: "Any") -> None:
        plain(module)
        # A shared loader, such as that of a zip file, loads others, too.
        if module.__name__ == name:
            words, function, parser = CALLS[name]
            module.main = _replace_call(module.main, words, lambda args: sys.argv[1:] if args is None else list(args))
            if function:
                parse = getattr(module, parser)
                call = _replace_call(getattr(module, function), words, lambda args: list_words(parse(), args))
                setattr(module, function, call)

    loader.exec_module = exec_module


def _replace_call(plain: "Callable[..., Any]", launcher: "list[str]", read: "Callable[[Any], list[str]]") -> "Any":
    def capture(args: "Any" = None) -> "Any":
        words = find_launch([*launcher, *map(str, read(args))])
        if not words:
            return plain() if args is None else plain(args)
        code = capture_launcher(words, sys.executable)
        # A launcher returns only from a run that has succeeded.
        if code:
            sys.exit(code)
        return None

    return capture


def list_words(parser: "Any", args: "Any") -> "list[str]":
    """The words that this parser has parsed, except for options with their default."""
    # The defaults as parsed: some are the text of a number or a switch.
    defaults = parser.parse_args(["script"])
    options = []  # type: list[str]
    rest = []  # type: list[str]
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list
        value = getattr(args, action.dest, None)
        if value is None:
            continue
        if not action.option_strings:
            rest += value if isinstance(value, list) else [value]
        elif value != getattr(defaults, action.dest) and (action.nargs != 0 or value == action.const):
            options += [max(action.option_strings, key=len), *([] if action.nargs == 0 else [str(value)])]
    return options + rest


if __name__ == "__main__":
    run_program(sys.argv[1], sys.argv[2:])
