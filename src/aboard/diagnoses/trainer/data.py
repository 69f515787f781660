"""Data that can't be read or prepared at all, before the gate has a say."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, FixCommand

FILES = Diagnosis(
    code="data-files",
    title="no data is named",
    symptoms=("no file is named, and there is no ./aboard.yaml", "has no data.files"),
    explanation="`aboard data` looks at the files that are typed, or at those of the section `data` of aboard.yaml.",
    fixes="aboard data FILE…    # or write it down: `data: {{files: [train.jsonl]}}` in aboard.yaml",
)

EXTRA = Diagnosis(
    code="data-extra",
    title="what data and training need isn't installed",
    symptoms=("ModuleNotFoundError: No module named 'pyarrow'", "ModuleNotFoundError: No module named 'datasets'"),
    explanation="`pip install aboard` brings what launching needs, in seconds. Reading data and training need more.",
    fixes="pip install 'aboard[train]'",
)

MISSING = Diagnosis(
    code="data-missing",
    title="there is no such file, or no rows in the directory",
    symptoms=(
        "FileNotFoundError: Unable to find",
        "EmptyDatasetError: The directory at DIR doesn't contain any data files",
    ),
    explanation="The path is wrong, or a directory holds no file that ends in .jsonl, .ndjson, .json, .txt, .parquet,"
    " .arrow or .idx (.gz, .zst, .bz2 or .xz behind). Relative paths in aboard.yaml start at that file.",
    fixes={
        "near": Advice("did you mean '{path}'?"),
        "look": FixCommand("ls {folder}"),
        "no-rows": Advice("put files in it that end in one of: {endings}"),
    },
)

ENDING = Diagnosis(
    code="data-ending",
    title="a file's name doesn't say how to read it",
    symptoms=(
        "has no known suffix, so its format is unknown",
        "contains JSON lines, but its suffix is that of plain text",
    ),
    explanation="Rows are read by the ending of the file's name. In a .txt file every line is a document.",
    fixes={
        "known": Advice("name it as one of: {endings} (.gz .zst .bz2 .xz behind)"),
        "rename": FixCommand("mv {old} {new}"),
    },
)

SPLIT = Diagnosis(
    code="data-split",
    title="the directory has no files of that split",
    symptoms=("has no file of the split 'train'", 'ValueError: Unknown split "train". Should be one of'),
    explanation="File names tell train, validation and test apart, and only the split that is trained on is read.",
    fixes={"other": Advice("write split: {split}"), "none": Advice("leave split: out, or name the files themselves")},
)

HUB = Diagnosis(
    code="data-hub",
    title="the data set can't be had from the hub",
    symptoms=(
        "DatasetNotFoundError: Dataset 'x' doesn't exist on the Hub or cannot be accessed",
        "ConnectionError: Couldn't reach 'x' on the Hub",
    ),
    explanation="There is no such file, and the hub lacks it, can't be reached or wants a login (`hf auth login`).",
    fixes="hf download --repo-type dataset {name}    # on a machine with internet; or check the name",
)

TOKENIZER = Diagnosis(
    code="data-tokenizer",
    title="the tokenizer can't be used",
    symptoms=("can't load a tokenizer from", "OSError: Can't load tokenizer for", "is not a fast one"),
    explanation="There is no such directory, the hub doesn't give it, or it has no tokenizer.json: only fast tokenizers"
    " tell which tokens belong to which text.",
    fixes={
        "slow": Advice("save a fast one: AutoTokenizer.from_pretrained(…).save_pretrained(DIR)"),
        "broken": FixCommand("ls {file}"),
        "missing": FixCommand("ls {folder}    # then give the path that is there; a name of the hub is OWNER/NAME"),
        "far": FixCommand("hf download {name}    # on a machine with internet; or give the path of a directory"),
    },
)

LENGTH = Diagnosis(
    code="data-length",
    title="max_length is too small",
    symptoms=("max_length: it is 1",),
    explanation="A sequence of one token has nothing to predict.",
    fixes=Advice("give at least 2; 2048 is usual"),
)

ALLOW = Diagnosis(
    code="data-allow",
    title="a finding that is to pass isn't one of the gate's",
    symptoms=("the data check has no code",),
    explanation="A typo in `--allow` or `data.allow` would silently let nothing pass.",
    remedy="`aboard why --codes` lists them, under `data`.",
    fixes={"near": Advice("did you mean '{code}'?"), "known": Advice("known here: {codes:words}")},
)

MIX = Diagnosis(
    code="data-mix",
    title="the sources can't be mixed",
    symptoms=("its weight is missing", "it has no packed sequences"),
    explanation="Each source of a mix needs a weight above 0, `{{path: FILE, weight: 1}}`, and at least one sequence.",
    fixes={
        "empty": FixCommand("leave {name} out, or see: aboard data {name}"),
        "none": Advice("name at least one source"),
        "weights": Advice("give one weight above 0 to each of: {names:words}"),
    },
)

MIX_FAR = Diagnosis(
    code="data-mix-far",
    title="a weight is too small to be held to",
    symptoms=("too small to be kept within 1 %",),
    explanation="A mix repeats after at most 100,000 sequences: a source below about 1 of 2,000 can't keep its weight.",
    fixes=Advice("give {name} at least {least}, or leave it out"),
)

UNREADABLE = Diagnosis(
    code="data-unreadable",
    title="a file can't be read",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 5] Input/output error"),
    explanation="The system doesn't let us read it: missing permissions, or a failing disk (`sudo dmesg | tail`).",
    fixes={"file": FixCommand("ls -l {path}"), "folder": FixCommand("ls -ld {path}")},
)

CHANGED = Diagnosis(
    code="data-changed",
    title="a file changed while it was read",
    symptoms=("changed while it was being prepared", "changed while it was being sent"),
    explanation="Half of the old content and half of the new one would be trained on.",
    fixes=Advice("wait until it is written, then give the same command again"),
)

DISK = Diagnosis(
    code="data-disk",
    title="the disk doesn't take prepared data",
    symptoms=("OSError: [Errno 28] No space left on device", "repeatedly differed from what was written"),
    explanation="The cache's disk is full, may not be written, or gives back other bytes than were written.",
    fixes={
        "room": FixCommand(
            "df -h {folder}    # make room, or prepare elsewhere: XDG_CACHE_HOME=/other/disk aboard train"
        ),
        "lies": FixCommand("df -h {folder}; sudo dmesg | tail"),
    },
)

LOCKED = Diagnosis(
    code="data-locked",
    title="another process holds what is needed",
    symptoms=("is still preparing the same data and holds",),
    explanation="The same data is prepared by another command, which did not come to its end within a day.",
    fixes="ps -p {process}  # on {host}; wait for it, or end it",
)

MANIFEST = Diagnosis(
    code="data-manifest",
    title="a directory of token shards can't be used",
    symptoms=("manifest.json", "a field is missing or has the wrong type"),
    explanation="Its manifest is not there, of another version, or not what docs/token-shards.md describes.",
    fixes=Advice("see docs/token-shards.md for what it must say; in ~/.cache/aboard/data, remove it: it is made again"),
)

SHARD_DAMAGED = Diagnosis(
    code="data-shard-damaged",
    title="a file of token shards was changed",
    symptoms=("but the manifest says",),
    explanation="Its size or its hash isn't what was written: a copy that broke off, or a disk that lies.",
    fixes="rm -r {folder}  # it is then made again",
)

WORKER_DIED = Diagnosis(
    code="data-worker-died",
    title="a process that reads rows was killed",
    symptoms=("was killed by signal 9", "Out of memory: Killed process", "BrokenProcessPool"),
    explanation="Signal 9 most often comes from the kernel, out of memory: one process per core, and very long rows.",
    fixes="free -g; sudo dmesg | grep -i oom  # too little memory? Use fewer cores: taskset -c 0-3 aboard train",
)

WORKER_SILENT = Diagnosis(
    code="data-worker-silent",
    title="a process that reads rows says nothing any more",
    symptoms=("has not responded for",),
    explanation="It waits for a disk or a file server that doesn't answer.",
    fixes=Advice("see whether the disk of the source answers: timeout 5 df -h DIR, or aboard check --only storage"),
)

WORKER = Diagnosis(
    code="data-worker",
    title="a process that reads rows broke",
    symptoms=("a worker failed: Traceback",),
    explanation="An error of ours that has no name yet; the message has its trace, and the row.",
    fixes={"row": Advice("please report it with the row that it names"), "report": Advice("please report it")},
)
