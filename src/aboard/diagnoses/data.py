"""Data that can't be read or prepared at all, before the gate has a say."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, Command

_AGAIN = "Remove that directory of `~/.cache/aboard/data`: it is made again from your files."

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
    explanation="The path is another one, or a directory holds no file whose ending tells how to read it. Relative"
    " paths in aboard.yaml start at that file.",
    remedy="`ls PATH`. Files end in .jsonl, .ndjson, .json, .txt, .parquet, .arrow or .idx, with .gz, .zst, .bz2 or"
    " .xz behind. A name of the hub is OWNER/NAME.",
    fixes={
        "near": Advice("did you mean '{path}'?"),
        "look": Command("ls {folder}"),
        "no-rows": Advice("put files in it that end in one of: {endings}"),
    },
)

ENDING = Diagnosis(
    code="data-ending",
    title="a file's name doesn't say how to read it",
    symptoms=("has no ending that says how to read it", "holds JSON lines, and its name says plain text"),
    explanation="Rows are read by the ending of the file's name. In a .txt file every line is a document.",
    remedy="Rename it, or make a link: `ln -s data.txt data.jsonl`.",
    fixes={
        "known": Advice("name it as one of: {endings} (.gz .zst .bz2 .xz behind)"),
        "rename": Command("mv {old} {new}"),
    },
)

SPLIT = Diagnosis(
    code="data-split",
    title="the directory has no files of that split",
    symptoms=("has no file of the split 'train'", 'ValueError: Unknown split "train". Should be one of'),
    explanation="File names tell train, validation and test apart, and only the one that is trained on is read: a"
    " test set that is trained on shows in no curve.",
    remedy="Name the files themselves instead of their directory.",
    fixes={"other": Advice("write split: {split}"), "none": Advice("leave split: out")},
)

HUB = Diagnosis(
    code="data-hub",
    title="the data set can't be had from the hub",
    symptoms=(
        "DatasetNotFoundError: Dataset 'x' doesn't exist on the Hub or cannot be accessed",
        "ConnectionError: Couldn't reach 'x' on the Hub",
    ),
    explanation="There is no file of that name here, and the hub has none, can't be reached, or wants a login.",
    remedy="Check the name. `hf download --repo-type dataset OWNER/NAME` where there is a network, `hf auth login`"
    " for a gated one; then name the directory.",
    fixes="hf download --repo-type dataset {name}    # on a machine with internet; or check the name",
)

TOKENIZER = Diagnosis(
    code="data-tokenizer",
    title="the tokenizer can't be used",
    symptoms=("no tokenizer can be had from", "OSError: Can't load tokenizer for", "is no fast one"),
    explanation="There is no directory of that name, the hub doesn't give it, or it has no tokenizer.json: only"
    " fast tokenizers tell which tokens belong to which text.",
    remedy="`ls DIR/tokenizer.json`. A slow one is made fast by"
    " `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)`.",
    fixes={
        "slow": Advice("save a fast one: AutoTokenizer.from_pretrained(…).save_pretrained(DIR)"),
        "broken": Command("ls {file}"),
        "missing": Command("ls {folder}    # then give the path that is there; a name of the hub is OWNER/NAME"),
        "far": Command("hf download {name}    # on a machine with internet; or give the path of a directory"),
    },
)

LENGTH = Diagnosis(
    code="data-length",
    title="max_length is too small",
    symptoms=("max_length: it is 1",),
    explanation="A sequence of one token has nothing to predict.",
    remedy="`data.max_length: 2048` is usual; at least 2.",
    fixes=Advice("give at least 2; 2048 is usual"),
)

ALLOW = Diagnosis(
    code="data-allow",
    title="a finding that is to pass isn't one of the gate's",
    symptoms=("the gate has no code",),
    explanation="A slip in `--allow` or `data.allow` would let nothing pass, and nobody would know.",
    remedy="`aboard why --codes` lists them, under `data`.",
    fixes={"near": Advice("did you mean '{code}'?"), "known": Advice("known here: {codes:words}")},
)

MIX = Diagnosis(
    code="data-mix",
    title="the sources can't be mixed",
    symptoms=("its weight is missing", "it has no bins"),
    explanation="Each source of a mix needs a weight above 0, and at least one sequence.",
    remedy="`aboard data FILE` shows what is in a source. Give each a weight: `{path: FILE, weight: 1}`; leave out"
    " those that have nothing.",
    fixes={
        "empty": Command("leave {name} out, or see: aboard data {name}"),
        "none": Advice("name at least one source"),
        "weights": Advice("give one weight above 0 to each of: {names:words}"),
    },
)

MIX_FAR = Diagnosis(
    code="data-mix-far",
    title="a weight is too small to be held to",
    symptoms=("too little to be held to 1 %",),
    explanation="A mix repeats after at most 100,000 sequences. A source that is less than about one of 2,000"
    " would come more or less often than its weight says, or never.",
    remedy="Give it at least what the message says, or leave it out.",
    fixes=Advice("give {name} at least {least}, or leave it out"),
)

UNREADABLE = Diagnosis(
    code="data-unreadable",
    title="a file can't be read",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 5] Input/output error"),
    explanation="The file is there, and the system doesn't let us read it.",
    remedy="`ls -l FILE` and `namei -l FILE`; `sudo dmesg | tail` if it is a disk that fails.",
    fixes={"file": Command("ls -l {path}"), "folder": Command("ls -ld {path}")},
)

CHANGED = Diagnosis(
    code="data-changed",
    title="a file changed while it was read",
    symptoms=("changed while it was being prepared", "changed while it was being sent"),
    explanation="Half of the old content and half of the new one would be trained on.",
    remedy="Wait until whatever writes it is done, then give the same command again: what was done is kept.",
    fixes=Advice("wait until it is written, then give the same command again"),
)

DISK = Diagnosis(
    code="data-disk",
    title="the disk doesn't take prepared data",
    symptoms=("OSError: [Errno 28] No space left on device", "was not what was read back, several times"),
    explanation="The cache's disk is full, may not be written, or gives back other bytes than were written.",
    remedy="`df -h ~/.cache/aboard`; `sudo dmesg | tail`. `XDG_CACHE_HOME=/other/disk aboard train` prepares"
    " elsewhere.",
    fixes={"room": Command("df -h {folder}"), "lies": Command("df -h {folder}; sudo dmesg | tail")},
)

LOCKED = Diagnosis(
    code="data-locked",
    title="another process holds what is needed",
    symptoms=("still prepares the same data, and holds",),
    explanation="The same data is prepared by another command, which did not come to its end within a day.",
    remedy="`fuser -v FILE` shows who. Wait for it, or end it.",
    fixes="ps -p {process}  # on {host}; wait for it, or end it",
)

MANIFEST = Diagnosis(
    code="data-manifest",
    title="a directory of token shards can't be used",
    symptoms=("manifest.json", "a field is missing or of the wrong kind"),
    explanation="Its manifest is not there, of another version, or not what docs/token-shards.md describes.",
    remedy=f"{_AGAIN} If another program wrote it, compare it with docs/token-shards.md.",
    fixes=Advice("see docs/token-shards.md for what it must say"),
)

SHARD_DAMAGED = Diagnosis(
    code="data-shard-damaged",
    title="a file of token shards was changed",
    symptoms=("and the manifest says",),
    explanation="Its size or its hash isn't what was written: a copy that broke off, or a disk that lies.",
    remedy=_AGAIN,
    fixes="rm -r {folder}  # it is then made again",
)

WORKER_DIED = Diagnosis(
    code="data-worker-died",
    title="a process that reads rows was killed",
    symptoms=("was killed by signal 9", "Out of memory: Killed process", "BrokenProcessPool"),
    explanation="Signal 9 is most often the kernel, out of memory: one process for each core, and rows that are"
    " very long.",
    remedy="`free -g`, `sudo dmesg | grep -i oom`. Leave cores out, which takes fewer processes: `taskset -c 0-3"
    " aboard train`. What was prepared is kept.",
    fixes="free -g; sudo dmesg | grep -i oom  # signal 9 is most often too little memory: use fewer workers",
)

WORKER_SILENT = Diagnosis(
    code="data-worker-silent",
    title="a process that reads rows says nothing any more",
    symptoms=("has said nothing for",),
    explanation="It waits for a disk or a file server that doesn't answer.",
    remedy="`timeout 5 df -h DIR` where the files are; `aboard check --only storage`.",
    fixes=Advice("see whether the disk of the source answers: df -h"),
)

WORKER = Diagnosis(
    code="data-worker",
    title="a process that reads rows broke",
    symptoms=("a worker broke: Traceback",),
    explanation="An error of ours that has no name yet; the message has its trace, and the row.",
    remedy="Please report it, with that row. Without the row, `aboard data` and training go on.",
    fixes={"row": Advice("please report it with the row that it names"), "report": Advice("please report it")},
)
