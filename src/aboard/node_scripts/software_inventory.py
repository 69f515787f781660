"""What a node runs to list its software: Python 3.9 and the standard library, without importing what it inspects.

`facts WORKDIR SECRETS [script|module TARGET]` prints one line of JSON; `list WORKDIR` prints every package and file,
and is asked only where digests differ. SECRETS is a pattern for the names of variables whose values stay on the node.
With a script or module, it also says what that imports.
"""

from __future__ import annotations

import _ast
import contextlib
import hashlib
import json
import os
import re
import site
import sys

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from typing import Any

MAX_FILES = 2_000
MAX_BYTES = 50_000_000
MAX_SEEN = 20_000
MAX_SCRIPT = 5_000_000
MAX_NAMES = 200

CODE = (".py", ".sh")
CONFIG = (".json", ".yaml", ".yml", ".toml")
# What a run writes and what tools keep is nobody's code.
SKIPPED = ("__pycache__", "node_modules", "outputs", "output", "runs", "logs", "wandb", "mlruns", "lightning_logs")

# From a package's name to the module that must be found beside it: a name without its module can't be imported.
MODULES = {
    **{
        name: name.replace("-", "_")
        for name in (
            "torch", "transformers", "accelerate", "deepspeed", "flash-attn", "numpy", "datasets", "tokenizers", "peft",
            "trl", "safetensors", "triton", "lightning", "transformer-engine", "megatron-core", "bitsandbytes",
            "xformers",
        )
    },
    "megatron-core": "megatron",
}  # fmt: skip
# Of rank 0 only, so that nodes may differ in them.
TRACKERS = {"wandb": "wandb", "mlflow": "mlflow", "mlflow-skinny": "mlflow", "tensorboard": "tensorboard"}
ENV_PREFIXES = ("NCCL_", "CUDA_", "TORCH_", "GLOO_", "OMP_", "HF_", "PYTORCH_")
ENV_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD")
_EXPECTED = {**MODULES, **TRACKERS}


class RankImports:
    """Finds modules as a rank would. Lines of code in .pth files run only if something isn't found without them.

    This runs with -S: on many machines a .pth file imports half a program at every start, which costs more than all
    the rest.
    """

    def __init__(self) -> None:
        self._deferred: list[str] = []

    def set_up_path(self) -> None:
        if sys.flags.isolated:
            # In a child of the agent, which ignores what ranks see: PYTHONPATH and the packages of the user.
            sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "BundleImporter"]
            sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
            vars(site).update(check_enableusersite=lambda: not os.environ.get("PYTHONNOUSERSITE"))
        vars(site).update(
            addpackage=self._add_path_file, execsitecustomize=lambda: None, execusercustomize=lambda: None
        )
        site.main()

    def _add_path_file(self, folder: str, name: str, known: set[str]) -> set[str]:
        """As site.addpackage, but lines that are code wait."""
        for line in read_text(os.path.join(folder, name)).splitlines():
            if line.startswith(("import ", "import\t")):
                self._deferred.append(line)
            elif line.strip() and not line.startswith("#"):
                path, path_case = site.makepath(folder, line.rstrip())
                if path_case not in known and os.path.exists(path):
                    sys.path.append(path)
                    known.add(path_case)
        return known

    def run_deferred_lines(self) -> None:
        while self._deferred:
            with contextlib.suppress(Exception):
                exec(self._deferred.pop(0), dict(vars(site)))  # noqa: S102 - as site does at the start of every rank

    def find_all(self, names: Sequence[str]) -> None:
        """Runs the deferred lines if one of the modules is not found without them."""
        if any(self.find_folder(name) is None for name in names):
            self.run_deferred_lines()

    def find_folder(self, module: str) -> str | None:
        """The first folder of a package, "" for a module that is a file, None for what is not found."""
        spec = self.find_spec(module)
        return None if spec is None else next(iter(spec.submodule_search_locations or ("",)))

    def find_spec(self, name: str) -> ModuleSpec | None:
        """As importlib.util.find_spec, of a top-level name."""
        for finder in sys.meta_path:
            try:
                spec = finder.find_spec(name, None)
            except Exception:  # noqa: BLE001 - a finder that refuses a name hides it from all that come after
                return None
            if spec is not None:
                return spec
        return None


def read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


def list_packages(folders: Sequence[str]) -> dict[str, str]:
    """Versions by package. Names of metadata directories are enough: reading 300 METADATA files would take a second."""
    found: dict[str, str] = {}
    for base in folders:
        try:
            names = sorted(os.listdir(base)) if base else []
        except OSError:
            continue
        for name in names:
            stem, _, ending = name.rpartition(".")
            if ending not in {"dist-info", "egg-info"} or stem.startswith("~"):
                continue
            parts = re.match(r"(.+?)-([^-]+)(?:-py[0-9][0-9.]*)?$", stem)
            if parts:
                project, version = parts.groups()
            else:
                stated = re.search(r"^Version: *(\S+)", read_text(os.path.join(base, name, "PKG-INFO")), re.MULTILINE)
                project, version = stem, stated.group(1) if stated else "unknown"
            found.setdefault(normalize_project(project), version)
    return found


def normalize_project(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def select_main_packages(imports: RankImports, everything: dict[str, str]) -> dict[str, str]:
    """The packages of `MODULES` that can be imported, and torch's own libraries."""
    wanted = {project: module for project, module in _EXPECTED.items() if project in everything}
    imports.find_all(list(wanted.values()))
    selected = {name: everything[name] for name, module in wanted.items() if imports.find_folder(module) is not None}
    torch = imports.find_folder("torch")
    if torch:
        version = read_text(os.path.join(torch, "version.py"))
        for name, variable in (("torch", "__version__"), ("cuda", "cuda"), ("rocm", "hip")):
            value = re.search(r"^%s\b[^=\n]*= *['\"]([^'\"]+)" % variable, version, re.MULTILINE)
            if value:
                selected.setdefault(name, value.group(1))
        for project, number in everything.items():
            if re.match(r"nvidia-nccl-cu\d+$|nvidia-nccl$", project):
                selected["nccl"] = number
    return selected


def list_variables(secrets: str) -> dict[str, str]:
    """The variables that change what a framework does; of a secret one, only whether it is the same elsewhere."""
    return {
        name: "hidden " + digest_lines([value]) if re.search(secrets, name.upper()) else value[:500]
        for name, value in os.environ.items()
        if name.startswith(ENV_PREFIXES) or name in ENV_NAMES
    }


def list_local_files(name: str, bases: Sequence[str]) -> list[str]:
    """The files that `import a.b` runs, if it is found beside the script."""
    for base in bases:
        found, folder = [], base
        for part in name.split("."):
            inside = os.path.join(folder, part)
            found += [path for path in (inside + ".py", os.path.join(inside, "__init__.py")) if os.path.isfile(path)]
            folder = inside
        if found:
            return found
    return []


def walk_tree(nodes: Sequence[_ast.AST]) -> Iterator[_ast.AST]:
    """As ast.walk; to import ast costs each node 11 ms."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            waiting += [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, _ast.AST)]


def list_imports(nodes: Sequence[_ast.AST], path: str, bases: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Each name as `import` would say it, with the folders in which it is looked for first."""
    for node in walk_tree(nodes):
        if isinstance(node, _ast.Import):
            for alias in node.names:
                yield alias.name, bases
        elif isinstance(node, _ast.ImportFrom):
            base = path
            for _ in range(node.level or 0):
                base = os.path.dirname(base)
            below = [base] if node.level else bases
            for alias in node.names:
                yield ".".join(filter(None, [node.module, alias.name])), below


def describe_needs(imports: RankImports, start: str, top: str, everything: dict[str, str]) -> dict[str, Any]:
    """What a script imports, statically: files beside it, and the versions of everything else."""
    files: list[str] = []
    external: set[str] = set()
    certain: list[str] = []
    known = set(getattr(sys, "stdlib_module_names", sys.builtin_module_names))
    waiting, bases = [start], [os.path.dirname(start), top]
    while waiting and len(files) < MAX_FILES:
        path = waiting.pop()
        if path in files:
            continue
        files.append(path)
        try:
            with open(path, "rb") as file:
                source = file.read(MAX_SCRIPT)
            tree: Any = compile(source, path, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        for name, below in list_imports([tree], path, bases):
            found = list_local_files(name, below)
            waiting += found
            first = name.partition(".")[0]
            if not found and below is bases and first not in known:
                external.add(first)
        if path == start:
            top_level = [each for each in tree.body if isinstance(each, (_ast.Import, _ast.ImportFrom))]
            certain = [name.partition(".")[0] for name, below in list_imports(top_level, path, bases) if below is bases]
    imports.find_all(list(external))
    versions = {name: find_version(imports, name, everything) for name in sorted(external)[:MAX_NAMES]}
    return {
        "needed": sorted(os.path.relpath(path, top) for path in files),
        "imports": versions,
        "missing": sorted({name for name in certain if versions.get(name) == "missing"}),
    }


def find_version(imports: RankImports, module: str, everything: dict[str, str]) -> str:
    project = next((key for key, name in _EXPECTED.items() if name == module), normalize_project(module))
    return everything.get(project) or ("present" if imports.find_folder(module) is not None else "missing")


def find_module_file(imports: RankImports, name: str, top: str) -> str:
    """The file that `-m name` runs, without importing what is above it."""
    parts = name.split(".")
    found = find_runnable_file(top, parts)
    if found:
        return found
    imports.run_deferred_lines()
    spec = imports.find_spec(parts[0])
    if spec is None or (len(parts) == 1 and not spec.submodule_search_locations):
        return spec.origin or "" if spec else ""
    files = (find_runnable_file(folder, parts[1:]) for folder in spec.submodule_search_locations or ())
    return next(filter(None, files), "")


def find_runnable_file(folder: str, parts: Sequence[str]) -> str:
    path = os.path.join(folder, *parts)
    return next((each for each in (path + ".py", os.path.join(path, "__main__.py")) if os.path.isfile(each)), "")


def digest_lines(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def hash_code(top: str) -> tuple[dict[str, str], bool]:
    """Hashes by file, and whether there are more than the limits."""
    files: dict[str, str] = {}
    size = 0
    for seen, (path, entry) in enumerate(walk_entries(top), 1):
        if entry.name.endswith(CODE + CONFIG) and not entry.name.startswith(".") and entry.is_file():
            try:
                size += entry.stat().st_size
                if size > MAX_BYTES:
                    return files, True
                with open(os.path.join(top, path), "rb") as file:
                    files[path] = hashlib.sha256(file.read()).hexdigest()[:12]
            except OSError:
                files[path] = "unreadable"
        if len(files) >= MAX_FILES or seen >= MAX_SEEN:
            return files, True
    return files, False


def walk_entries(top: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Sorted all the way, so that equal trees are cut at the same file; without environments and outputs."""
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            entries = sorted(os.scandir(os.path.join(top, below)), key=lambda entry: entry.name)
        except OSError:
            continue
        if below and any(entry.name in {"pyvenv.cfg", "conda-meta"} for entry in entries):
            continue
        deeper = []
        for entry in entries:
            path = os.path.join(below, entry.name)
            yield path, entry
            hidden = entry.name.startswith((".", "checkpoint")) or entry.name in SKIPPED
            if not hidden and entry.is_dir(follow_symlinks=False):
                deeper.append(path)
        waiting += reversed(deeper)


def find_commit(top: str) -> str:
    """The commit that is checked out. Without git: it may be missing, slow, or refuse a repository of another user."""
    while True:
        head = read_text(os.path.join(top, ".git", "HEAD")).strip()
        if head or os.path.dirname(top) == top:
            break
        top = os.path.dirname(top)
    if not head.startswith("ref: "):
        return head[:12]
    ref = head[5:]
    loose = read_text(os.path.join(top, ".git", ref)).strip()
    refs = read_text(os.path.join(top, ".git", "packed-refs"))
    packed = re.search(r"^([0-9a-f]+) %s$" % re.escape(ref), refs, re.MULTILINE)
    return (loose or (packed.group(1) if packed else ""))[:12]


def describe_program(
    imports: RankImports, kind: str, target: str, top: str, everything: dict[str, str]
) -> dict[str, Any]:
    path = os.path.join(top, target) if kind == "script" else find_module_file(imports, target, top)
    needs = describe_needs(imports, path, top, everything) if path else {}
    module, asked = (path, target) if kind == "module" else ("", "")
    return dict(needs, module=module, asked_module=asked)


def describe_software(what: str, top: str, secrets: str = "", kind: str = "", target: str = "") -> dict[str, Any]:
    imports = RankImports()
    imports.set_up_path()
    everything = list_packages(sys.path)
    top = top if os.path.isdir(top) else ""
    files, cut = hash_code(top) if top else ({}, False)
    if what == "list":
        return {"packages": everything, "files": files}
    return {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "packages": select_main_packages(imports, everything),
        "environment": digest_lines(["%s==%s" % item for item in sorted(everything.items())]),
        "count": len(everything),
        "variables": list_variables(secrets),
        "code": digest_lines(["%s %s" % item for item in sorted(files.items())]) if top else "",
        "files": len(files),
        "cut": cut,
        "commit": find_commit(os.path.abspath(top)) if top else "",
        "program": describe_program(imports, kind, target, top, everything) if kind and top else {},
    }


if __name__ == "__main__":
    print(json.dumps(describe_software(*sys.argv[1:6])))
