"""What a node runs to tell its software: Python 3.9 and the standard library, without importing what it looks at.

`python -c SCRIPT facts WORKDIR` prints one line of JSON; `list` in place of `facts` prints every package and file, and
is asked only where digests differ.
"""

MAX_FILES = 2_000
MAX_BYTES = 50_000_000
MAX_SEEN = 20_000

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
ENV_PREFIXES = ("NCCL_", "CUDA_", "TORCH_", "GLOO_", "OMP_", "HF_", "PYTORCH_")
ENV_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD")
SECRET = "TOKEN|KEY|SECRET|PASSW"  # noqa: S105 - names of secrets, not one

_HEAD = f"""\
MODULES = {MODULES!r}
PREFIXES, NAMES, SECRET = {ENV_PREFIXES!r}, {ENV_NAMES!r}, {SECRET!r}
ENDINGS, SKIPPED = {CODE + CONFIG!r}, {SKIPPED!r}
MAX_FILES, MAX_BYTES, MAX_SEEN = {MAX_FILES}, {MAX_BYTES}, {MAX_SEEN}
"""
# Run with -S: on many machines a .pth file imports half a program at every start, which costs more than all the rest.
_BODY = r"""
import hashlib, importlib.util, json, os, re, site, sys

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
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
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
            secret = re.search(SECRET, name.upper())
            told[name] = "hidden " + digest([value]) if secret else value[:500]
    return told

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

def main(what, top):
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
    }

print(json.dumps(main(*sys.argv[1:3])))
"""
SCRIPT = _HEAD + _BODY
