"""What a node runs to tell its software: Python 3.9 and the standard library, without importing what it looks at.

`python -c SCRIPT facts WORKDIR [script|module TARGET]` prints one line of JSON; `list` in place of `facts` prints every
package and file, and is asked only where digests differ. With a script or module, it also says what that imports.
"""

from aboard.core.secrets.secret_names import SECRET_WORDS

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
    "torch": "torch",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "flash-attn": "flash_attn",
    "numpy": "numpy",
    "datasets": "datasets",
    "tokenizers": "tokenizers",
    "peft": "peft",
    "trl": "trl",
    "safetensors": "safetensors",
    "triton": "triton",
    "lightning": "lightning",
    "transformer-engine": "transformer_engine",
    "megatron-core": "megatron",
    "bitsandbytes": "bitsandbytes",
    "xformers": "xformers",
}
# Of rank 0 only, so that nodes may differ in them.
TRACKERS = {"wandb": "wandb", "mlflow": "mlflow", "mlflow-skinny": "mlflow", "tensorboard": "tensorboard"}
ENV_PREFIXES = ("NCCL_", "CUDA_", "TORCH_", "GLOO_", "OMP_", "HF_", "PYTORCH_")
ENV_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD")

_HEAD = f"""\
MODULES = {MODULES | TRACKERS!r}
PREFIXES, NAMES, SECRET_WORDS = {ENV_PREFIXES!r}, {ENV_NAMES!r}, {SECRET_WORDS!r}
ENDINGS, SKIPPED = {CODE + CONFIG!r}, {SKIPPED!r}
MAX_FILES, MAX_BYTES, MAX_SEEN = {MAX_FILES}, {MAX_BYTES}, {MAX_SEEN}
MAX_SCRIPT, MAX_NAMES = {MAX_SCRIPT}, {MAX_NAMES}
"""
# Run with -S: on many machines a .pth file imports half a program at every start, which costs more than all the rest.
_BODY = r"""
import _ast, hashlib, json, os, re, site, sys

LATER = []

def addpackage(folder, name, known):
    # As site.addpackage, but lines that are code wait until something is not found without them.
    for line in text(os.path.join(folder, name)).splitlines():
        if line.startswith(("import ", "import\t")):
            LATER.append(line)
        elif line.strip() and not line.startswith("#"):
            path, path_case = site.makepath(folder, line.rstrip())
            if path_case not in known and os.path.exists(path):
                sys.path.append(path)
                known.add(path_case)
    return known

def set_up():
    if sys.flags.isolated:
        # In a child of the agent, which ignores what ranks see: PYTHONPATH and the packages of the user.
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "BundleImporter"]
        sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
        site.check_enableusersite = lambda: not os.environ.get("PYTHONNOUSERSITE")
    site.addpackage = addpackage
    site.execsitecustomize = site.execusercustomize = lambda: None
    site.main()

def run_later():
    while LATER:
        try:
            exec(LATER.pop(0))
        except Exception:
            pass

def text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""

def packages():
    # Names of metadata directories say all; reading 300 METADATA files would take a second.
    found = {}
    for base in sys.path:
        try:
            names = sorted(os.listdir(base)) if base else []
        except OSError:
            continue
        for name in names:
            stem, dot, ending = name.rpartition(".")
            if ending not in ("dist-info", "egg-info") or stem.startswith("~"):
                continue
            parts = re.match(r"(.+?)-([^-]+)(?:-py[0-9][0-9.]*)?$", stem)
            if parts:
                project, version = parts.groups()
            else:
                told = re.search(r"^Version: *(\S+)", text(os.path.join(base, name, "PKG-INFO")), re.M)
                project, version = stem, told.group(1) if told else "unknown"
            found.setdefault(re.sub(r"[-_.]+", "-", project).lower(), version)
    return found

def place(module):
    spec = find(module)
    return None if spec is None else list(spec.submodule_search_locations or [""])[0]

def main_packages(everything):
    told = {}
    wanted = {project: module for project, module in MODULES.items() if project in everything}
    if any(place(module) is None for module in wanted.values()):
        run_later()
    for project, module in wanted.items():
        if place(module) is not None:
            told[project] = everything[project]
    torch = place("torch")
    if torch:
        version = text(os.path.join(torch, "version.py"))
        for name, pattern in (("torch", "__version__"), ("cuda", "cuda"), ("rocm", "hip")):
            value = re.search(r"^%s\b[^=\n]*= *['\"]([^'\"]+)" % pattern, version, re.M)
            if value:
                told.setdefault(name, value.group(1))
        for project in everything:
            if re.match(r"nvidia-nccl-cu\d+$|nvidia-nccl$", project):
                told["nccl"] = everything[project]
    return told

def variables():
    told = {}
    for name, value in os.environ.items():
        if name.startswith(PREFIXES) or name in NAMES:
            secret = any(word in name.upper() for word in SECRET_WORDS)
            told[name] = "hidden " + digest([value]) if secret else value[:500]
    return told

def local_files(name, bases):
    # The files that `import a.b` runs, if it is found beside the script.
    for base in bases:
        found, folder = [], base
        for part in name.split("."):
            inside = os.path.join(folder, part)
            found += [path for path in (inside + ".py", os.path.join(inside, "__init__.py")) if os.path.isfile(path)]
            folder = inside
        if found:
            return found
    return []

def walk(tree):
    # As ast.walk; to import ast costs each node 11 ms.
    waiting = list(tree) if isinstance(tree, list) else [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            waiting += [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, _ast.AST)]

def imported(tree, path, bases):
    # Names as `import` would say them; relative ones as files.
    for node in walk(tree):
        if isinstance(node, _ast.Import):
            for alias in node.names:
                yield alias.name, bases
        elif isinstance(node, _ast.ImportFrom):
            base = path
            for _ in range(node.level):
                base = os.path.dirname(base)
            below = [base] if node.level else bases
            for alias in node.names:
                yield ".".join(filter(None, [node.module, alias.name])), below

def external(name, everything):
    project = next((key for key, module in MODULES.items() if module == name), re.sub(r"[-_.]+", "-", name).lower())
    return everything.get(project) or ("present" if place(name) is not None else "missing")

def needs(start, top, everything):
    # What a script imports, statically: files beside it, and the versions of everything else.
    files, versions, certain = [], {}, []
    known = set(getattr(sys, "stdlib_module_names", sys.builtin_module_names))
    waiting, bases = [start], [os.path.dirname(start), top]
    while waiting and len(files) < MAX_FILES:
        path = waiting.pop()
        if path in files:
            continue
        files.append(path)
        try:
            with open(path, "rb") as file:
                tree = compile(file.read(MAX_SCRIPT), path, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        for name, below in imported(tree, path, bases):
            found = local_files(name, below)
            waiting += found
            first = name.partition(".")[0]
            if not found and below is bases and first not in known:
                versions[first] = None
        if path == start:
            first = [each for each in tree.body if isinstance(each, (_ast.Import, _ast.ImportFrom))]
            certain = [name.partition(".")[0] for name, below in imported(first, path, bases) if below is bases]
    if any(place(name) is None for name in versions):
        run_later()
    versions = {name: external(name, everything) for name in sorted(versions)[:MAX_NAMES]}
    return {
        "needed": sorted(os.path.relpath(path, top) for path in files),
        "imports": versions,
        "missing": sorted({name for name in certain if versions.get(name) == "missing"}),
    }

def module_file(name, top):
    # The file that `-m name` runs, without importing what is above it.
    parts = name.split(".")
    found = runnable(top, parts)
    if found:
        return found
    run_later()
    spec = find(parts[0])
    if spec is None or len(parts) == 1 and not spec.submodule_search_locations:
        return spec.origin or "" if spec else ""
    return next(filter(None, (runnable(folder, parts[1:]) for folder in spec.submodule_search_locations or ())), "")

def runnable(folder, parts):
    path = os.path.join(folder, *parts)
    return next((each for each in (path + ".py", os.path.join(path, "__main__.py")) if os.path.isfile(each)), "")

def find(name):
    # As importlib.util.find_spec, of a top-level name.
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, None)
        except Exception:
            # A finder that refuses a name hides it from all that come after.
            return None
        if spec is not None:
            return spec
    return None

def digest(lines):
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]

def code(top):
    # Sorted all the way, so that equal trees are cut at the same file.
    files, size, seen, cut = {}, 0, 0, False
    waiting = [""]
    while waiting and not cut:
        below = waiting.pop()
        try:
            entries = sorted(os.scandir(os.path.join(top, below)), key=lambda entry: entry.name)
        except OSError:
            continue
        names = {entry.name for entry in entries}
        if below and ("pyvenv.cfg" in names or "conda-meta" in names):
            continue
        deeper = []
        for entry in entries:
            seen += 1
            path = os.path.join(below, entry.name)
            hidden = entry.name.startswith((".", "checkpoint")) or entry.name in SKIPPED
            if entry.is_dir(follow_symlinks=False):
                if not hidden:
                    deeper.append(path)
            elif entry.name.endswith(ENDINGS) and not entry.name.startswith(".") and entry.is_file():
                try:
                    size += entry.stat().st_size
                    if size > MAX_BYTES:
                        cut = True
                        break
                    with open(os.path.join(top, path), "rb") as file:
                        files[path] = hashlib.sha256(file.read()).hexdigest()[:12]
                except OSError as error:
                    files[path] = "unreadable"
            if len(files) >= MAX_FILES or seen >= MAX_SEEN:
                cut = True
                break
        waiting += reversed(deeper)
    return files, cut

def commit(top):
    # Without git: it may be missing, slow, or refuse a repository that another user owns.
    while True:
        head = text(os.path.join(top, ".git", "HEAD")).strip()
        if head or os.path.dirname(top) == top:
            break
        top = os.path.dirname(top)
    if not head.startswith("ref: "):
        return head[:12]
    ref = head[5:]
    loose = text(os.path.join(top, ".git", ref)).strip()
    packed = re.search(r"^([0-9a-f]+) %s$" % re.escape(ref), text(os.path.join(top, ".git", "packed-refs")), re.M)
    return (loose or (packed.group(1) if packed else ""))[:12]

def program(kind, target, top, everything):
    path = os.path.join(top, target) if kind == "script" else module_file(target, top)
    told = needs(path, top, everything) if path else {}
    return dict(told, module=path, asked_module=target) if kind == "module" else dict(told, module="", asked_module="")

def main(what, top, kind="", target=""):
    set_up()
    everything = packages()
    top = top if os.path.isdir(top) else ""
    files, cut = code(top) if top else ({}, False)
    if what == "list":
        return {"packages": everything, "files": files}
    return {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "packages": main_packages(everything),
        "environment": digest(["%s==%s" % item for item in sorted(everything.items())]),
        "count": len(everything),
        "variables": variables(),
        "code": digest(["%s %s" % item for item in sorted(files.items())]) if top else "",
        "files": len(files),
        "cut": cut,
        "commit": commit(os.path.abspath(top)) if top else "",
        "program": program(kind, target, top, everything) if kind and top else {},
    }

print(json.dumps(main(*sys.argv[1:5])))
"""
SCRIPT = _HEAD + _BODY
