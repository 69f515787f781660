"""The stories of data that can't be read or prepared at all, before the gate has a say."""

from aboard.core.rule import Subject
from aboard.core.story import Story
from aboard.diagnoses import Severity

_AGAIN = "Remove that directory of `~/.cache/aboard/data`: it is made again from your files."

STORIES = (
    Story(
        code="data-files",
        title="no data is named",
        severity=Severity.BLOCK,
        shows=("no file is named, and there is no ./aboard.yaml", "has no data.files"),
        why="`aboard data` looks at the files that are typed, or at those of the section `data` of aboard.yaml.",
        mend="`aboard data train.jsonl`, or write `data: {files: [train.jsonl]}` into aboard.yaml.",
    ),
    Story(
        code="data-extra",
        title="what data and training need isn't installed",
        severity=Severity.BLOCK,
        shows=("ModuleNotFoundError: No module named 'pyarrow'", "ModuleNotFoundError: No module named 'datasets'"),
        why="`pip install aboard` brings what launching needs, in seconds. Reading data and training need more.",
        mend="`pip install 'aboard[train]'`.",
    ),
    Story(
        code="data-missing",
        title="there is no such file, or no rows in the directory",
        severity=Severity.BLOCK,
        shows=(
            "FileNotFoundError: Unable to find",
            "EmptyDatasetError: The directory at DIR doesn't contain any data files",
        ),
        why="The path is another one, or a directory holds no file whose ending tells how to read it. Relative paths in"
        " aboard.yaml start at that file.",
        mend="`ls PATH`. Files end in .jsonl, .ndjson, .json, .txt, .parquet, .arrow or .idx, with .gz, .zst, .bz2 or"
        " .xz behind. A name of the hub is OWNER/NAME.",
    ),
    Story(
        code="data-ending",
        title="a file's name doesn't say how to read it",
        severity=Severity.BLOCK,
        shows=("has no ending that says how to read it", "holds JSON lines, and its name says plain text"),
        why="Rows are read by the ending of the file's name. In a .txt file every line is a document.",
        mend="Rename it, or make a link: `ln -s data.txt data.jsonl`.",
    ),
    Story(
        code="data-split",
        title="the directory has no files of that split",
        severity=Severity.BLOCK,
        shows=("has no file of the split 'train'", 'ValueError: Unknown split "train". Should be one of'),
        why="File names tell train, validation and test apart, and only the one that is trained on is read: a test"
        " set that is trained on shows in no curve.",
        mend="Name the files themselves instead of their directory.",
    ),
    Story(
        code="data-hub",
        title="the data set can't be had from the hub",
        severity=Severity.BLOCK,
        shows=(
            "DatasetNotFoundError: Dataset 'x' doesn't exist on the Hub or cannot be accessed",
            "ConnectionError: Couldn't reach 'x' on the Hub",
        ),
        why="There is no file of that name here, and the hub has none, can't be reached, or wants a login.",
        mend="Check the name. `hf download --repo-type dataset OWNER/NAME` where there is a network, `hf auth login`"
        " for a gated one; then name the directory.",
    ),
    Story(
        code="data-tokenizer",
        title="the tokenizer can't be used",
        severity=Severity.BLOCK,
        shows=("no tokenizer can be had from", "OSError: Can't load tokenizer for", "is no fast one"),
        why="There is no directory of that name, the hub doesn't give it, or it has no tokenizer.json: only fast"
        " tokenizers tell which tokens belong to which text.",
        mend="`ls DIR/tokenizer.json`. A slow one is made fast by"
        " `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)`.",
    ),
    Story(
        code="data-length",
        title="max_length is too small",
        severity=Severity.BLOCK,
        shows=("max_length: it is 1",),
        why="A sequence of one token has nothing to predict.",
        mend="`data.max_length: 2048` is usual; at least 2.",
    ),
    Story(
        code="data-allow",
        title="a finding that is to pass isn't one of the gate's",
        severity=Severity.BLOCK,
        shows=("the gate has no code",),
        why="A slip in `--allow` or `data.allow` would let nothing pass, and nobody would know.",
        mend="`aboard why --codes` lists them, under `data`.",
    ),
    Story(
        code="data-mix",
        title="the sources can't be mixed",
        severity=Severity.BLOCK,
        shows=("its weight is missing", "it has no bins"),
        why="Each source of a mix needs a weight above 0, and at least one sequence.",
        mend="`aboard data FILE` shows what is in a source. Give each a weight: `{path: FILE, weight: 1}`; leave out"
        " those that have nothing.",
    ),
    Story(
        code="data-mix-far",
        title="a weight is too small to be held to",
        severity=Severity.BLOCK,
        shows=("too little to be held to 1 %",),
        why="A mix repeats after at most 100,000 sequences. A source that is less than about one of 2,000 would come"
        " more or less often than its weight says, or never.",
        mend="Give it at least what the message says, or leave it out.",
    ),
    Story(
        code="data-unreadable",
        title="a file can't be read",
        severity=Severity.BLOCK,
        shows=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 5] Input/output error"),
        why="The file is there, and the system doesn't let us read it.",
        mend="`ls -l FILE` and `namei -l FILE`; `sudo dmesg | tail` if it is a disk that fails.",
    ),
    Story(
        code="data-changed",
        title="a file changed while it was read",
        severity=Severity.BLOCK,
        shows=("changed while it was being prepared", "changed while it was being sent"),
        why="Half of the old content and half of the new one would be trained on.",
        mend="Wait until whatever writes it is done, then give the same command again: what was done is kept.",
    ),
    Story(
        code="data-disk",
        title="the disk doesn't take prepared data",
        severity=Severity.BLOCK,
        shows=("OSError: [Errno 28] No space left on device", "was not what was read back, several times"),
        why="The cache's disk is full, may not be written, or gives back other bytes than were written.",
        mend="`df -h ~/.cache/aboard`; `sudo dmesg | tail`. `XDG_CACHE_HOME=/other/disk aboard train` prepares"
        " elsewhere.",
    ),
    Story(
        code="data-locked",
        title="another process holds what is needed",
        severity=Severity.BLOCK,
        shows=("still prepares the same data, and holds",),
        why="The same data is prepared by another command, which did not come to its end within a day.",
        mend="`fuser -v FILE` shows who. Wait for it, or end it.",
    ),
    Story(
        code="data-manifest",
        title="a directory of token shards can't be used",
        severity=Severity.BLOCK,
        shows=("manifest.json", "a field is missing or of the wrong kind"),
        why="Its manifest is not there, of another version, or not what docs/token-shards.md describes.",
        mend=f"{_AGAIN} If another program wrote it, compare it with docs/token-shards.md.",
    ),
    Story(
        code="data-shard-damaged",
        title="a file of token shards was changed",
        severity=Severity.BLOCK,
        shows=("and the manifest says",),
        why="Its size or its hash isn't what was written: a copy that broke off, or a disk that lies.",
        mend=_AGAIN,
    ),
    Story(
        code="data-worker-died",
        title="a process that reads rows was killed",
        severity=Severity.BLOCK,
        shows=("was killed by signal 9", "Out of memory: Killed process", "BrokenProcessPool"),
        why="Signal 9 is most often the kernel, out of memory: one process for each core, and rows that are very long.",
        mend="`free -g`, `sudo dmesg | grep -i oom`. Leave cores out, which takes fewer processes: `taskset -c 0-3"
        " aboard train`. What was prepared is kept.",
    ),
    Story(
        code="data-worker-silent",
        title="a process that reads rows says nothing any more",
        severity=Severity.BLOCK,
        shows=("has said nothing for",),
        why="It waits for a disk or a file server that doesn't answer.",
        mend="`timeout 5 df -h DIR` where the files are; `aboard check --only storage`.",
    ),
    Story(
        code="data-worker",
        title="a process that reads rows broke",
        severity=Severity.BLOCK,
        shows=("a worker broke: Traceback",),
        why="An error of ours that has no name yet; the message has its trace, and the row.",
        mend="Please report it, with that row. Without the row, `aboard data` and training go on.",
    ),
)

PREPARED = Subject(
    name="preparing",
    title="data can be read and prepared",
    probes=(),
    rules=(),
    stories=STORIES,
    asked="aboard data FILE…",
    room="verdicts/errors",
)
