"""Diagnoses of data that can't be read or prepared, before the data check."""

from aboard.diagnoses.diagnosis import Diagnosis, Mistake, RunFailure
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.fixes import Advice

FILES = Mistake(code="data-files", fixes="aboard data FILE…    # or in aboard.yaml: `data: {{files: [train.jsonl]}}`")

EXTRA = Diagnosis(
    code="data-extra",
    title="packages for data and training are not installed",
    symptoms=("ModuleNotFoundError: No module named 'pyarrow'", "ModuleNotFoundError: No module named 'datasets'"),
    explanation="`pip install aboard` installs only what launching needs. Reading data and training need more"
    " packages.",
    fixes="pip install '.[train]'    # in the checkout of Aboard",
)

MISSING = Mistake(
    code="data-missing",
    fixes={
        "near": Advice("did you mean '{path}'?"),
        "look": "ls {folder}",
        "unclear": Advice("correct the path; or, for a data set of the Hugging Face Hub, write it as hub:{name}"),
        "no-rows": Advice("the directory needs files that end in one of: {endings}"),
    },
)

ENDING = Mistake(
    code="data-ending",
    fixes={
        "known": Advice("rename it to end in one of: {endings} (plus .gz .zst .bz2 .xz)"),
        "rename": "mv {old} {new}",
        "table": "python3 -c {program} < {file} > {rows}    # one JSON object per line",
    },
)

SPLIT = Mistake(
    code="data-split",
    fixes={
        "other": Advice("write split: {split}"),
        "none": Advice("remove split:, or list the files"),
        "local": Advice("remove {key}:, which is for data sets of the Hub"),
    },
)

HUB = Diagnosis(
    code="data-hub",
    title="the dataset can't be downloaded from the Hugging Face Hub",
    symptoms=(
        "DatasetNotFoundError: Dataset 'x' doesn't exist on the Hub or cannot be accessed",
        "ConnectionError: Couldn't reach 'x' on the Hub",
    ),
    explanation="No local file has that name, and the Hugging Face Hub does not have the dataset, can't be reached, or"
    " requires a login (`hf auth login`).",
    fixes="hf download --repo-type dataset {name}    # on a machine with internet access; or check the name",
)

TOKENIZER = Diagnosis(
    code="data-tokenizer",
    title="the tokenizer can't be used",
    symptoms=("can't load a tokenizer from", "OSError: Can't load tokenizer for", "is not a fast tokenizer"),
    explanation="The directory does not exist, the Hugging Face Hub does not provide the tokenizer, or there is no"
    " tokenizer.json. Aboard needs a fast tokenizer, because only fast tokenizers report which part of the text each"
    " token came from.",
    fixes={
        "slow": Advice("save a fast tokenizer: AutoTokenizer.from_pretrained(…).save_pretrained(DIR)"),
        "broken": "ls {file}",
        "missing": "ls {folder}    # use an existing path; a Hugging Face Hub name is OWNER/NAME",
        "unclear": Advice("correct the path; or, for a name of the Hugging Face Hub, write it as hub:{name}"),
        "far": "hf download {name}    # on a machine with internet access; or use a local directory",
    },
)

TEMPLATE_LIMIT = Diagnosis(
    code="data-template-limit",
    title="the chat template takes too much time or memory",
    symptoms=("the tokenizer's chat template needs more than 10 s of processor time for train.jsonl:7",),
    explanation="A chat template is a program in Jinja that comes with the tokenizer. For one row it took 10 s of"
    " processor time or 1 GB of memory, where others take less than a second: it has an error, or was made to do so.",
    fixes=Advice("data:\n  template: FILE.jinja   # another template, after reading the tokenizer's own"),
)

LENGTH = Mistake(code="data-length", fixes=Advice("set at least 2; 2048 is common"))

SHARE = Mistake(
    code="data-validation-share", fixes=Advice("write a larger share, or a file: `data: {{validation: held.jsonl}}`")
)

ALLOW = Mistake(
    code="data-allow", fixes={"near": Advice("did you mean '{code}'?"), "known": Advice("known codes: {codes:words}")}
)

MIX = Mistake(
    code="data-mix",
    fixes={
        "empty": "remove {name}, or check it: aboard data {name}",
        "none": Advice("specify at least one source"),
        "weights": Advice("set a weight above 0 for each of: {names:words}"),
    },
)

MIX_FAR = Mistake(code="data-mix-far", fixes=Advice("set the weight of {name} to at least {least}, or remove it"))

DISK = Diagnosis(
    code="data-disk",
    title="prepared data can't be written to disk",
    symptoms=("OSError: [Errno 28] No space left on device", "repeatedly differed from what was written"),
    explanation="The cache's disk is full, is not writable, or returns different bytes than were written.",
    fixes={
        "room": "df -h {folder}    # free space, or prepare elsewhere: XDG_CACHE_HOME=/other/disk aboard train",
        "lies": "df -h {folder}; sudo dmesg | tail",
    },
)

MANIFEST = RunFailure(
    code="data-manifest",
    restart=FailureClass.PROGRAM,
    title="a directory of token shards can't be used",
    symptoms=("manifest.json", "a field is missing or has the wrong type"),
    explanation="The directory's manifest is missing, has an unsupported version, or does not follow"
    " docs/token-shards.md.",
    fixes=Advice(
        "docs/token-shards.md describes the format; Aboard rebuilds what you remove from ~/.cache/aboard/data"
    ),
)

WORKER_DIED = Diagnosis(
    code="data-worker-died",
    title="a data worker process was killed",
    symptoms=("was killed by signal 9", "Out of memory: Killed process", "BrokenProcessPool"),
    explanation="Signal 9 usually comes from the kernel when memory runs out. Aboard runs one worker process per core,"
    " and rows may be very long.",
    fixes="free -g; sudo dmesg | grep -i oom  # out of memory? Use fewer cores: taskset -c 0-3 aboard train",
)

WORKER_SILENT = Diagnosis(
    code="data-worker-silent",
    title="a data worker process stopped responding",
    symptoms=("has not responded for",),
    explanation="The worker is probably waiting for a disk or a file server that does not respond.",
    fixes=Advice("check that the source's disk responds: timeout 5 df -h DIR, or aboard check --only storage"),
)

WORKER = Diagnosis(
    code="data-worker",
    title="a data worker process crashed",
    symptoms=("a worker failed: Traceback",),
    explanation="An unexpected error in Aboard stopped a worker process. The error output contains its traceback.",
    fixes={"row": Advice("please report it with that row"), "report": Advice("please report it")},
)
