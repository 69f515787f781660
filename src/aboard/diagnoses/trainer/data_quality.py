"""Rows that the gate finds fault with. Without numpy: `aboard why` tells them in the light install, too."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, FixCommand
from aboard.diagnoses.messages import cause

# `again` is the command that was given, with one option more.
_PASS = {"allow": FixCommand("{again:shell aboard data --allow CODE}    # if it is meant to be so")}
_TEMPLATE = "{again:shell aboard data --template FILE}"
_LENGTH = "{again:shell aboard data --max-length LENGTH}"
# `script` is in quotes already.
_LOOK = {
    "line": FixCommand("sed -n {script:shell 17p} {file} | cut -c 1-300    # shows the first of them"),
    "rows": FixCommand("aboard data {file} --show 5    # shows what rows hold"),
}

NO_ROWS = Diagnosis(
    code="data-no-rows",
    title="There is no row in the files",
    symptoms=("ValueError: num_samples should be a positive integer value, but got num_samples=0", "0 examples"),
    explanation="The file is empty, its name is that of another one, or the split that was asked for is empty.",
    fixes="ls -l {file}    # is this the file that was meant?",
)

BROKEN = Diagnosis(
    code="data-broken",
    title="Rows can't be read",
    symptoms=(
        "json.decoder.JSONDecodeError: Unterminated string starting at",
        "pyarrow.lib.ArrowInvalid: JSON parse error: Missing a closing quotation mark in string",
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
    ),
    explanation="A line is no JSON, no UTF-8, or no row of the format: a column is missing or has another type, a role"
    " is unknown. A broken last line means that a copy broke off, and an unknown part is missing: copy it again.",
    leads_to=("data-no-rows",),
    fixes={
        **_LOOK,
        "names": FixCommand("aboard data {file} --json    # names them; write the file anew without them"),
        "delete": FixCommand("sed -i {script:shell 17d} {file}    # deletes them"),
        "keep": FixCommand("jq -cR 'fromjson? | objects' {file} > {kept}    # keeps what can be read"),
        **_PASS,
    },
    log_fix="aboard data FILE    # names the file and the line",
    patterns=cause(
        r"JSONDecodeError|ArrowInvalid|DatasetGenerationError|pyarrow\.lib\.\w+|UnicodeDecodeError"
        r"|UnidentifiedImageError|zipfile\.BadZipFile|DatasetGenerationCastError",
        "A file of the data can't be read: cut off, or of another format than the rest.",
        weight=2,
    ),
)

EMPTY = Diagnosis(
    code="data-empty",
    title="Rows hold no text",
    symptoms=("loss is nan", "the model answers with nothing"),
    explanation="All texts of the row are blank, or it has no tokens. Often the text is in a column of another name.",
    remedy="Take them out: `jq -c 'select(.text != \"\")' FILE > KEPT`. Or let them pass: `--allow data-empty`.",
    leads_to=("data-no-loss",),
    fixes={**_LOOK, **_PASS},
)

TEMPLATE = Diagnosis(
    code="data-template",
    title="The chat template doesn't show which tokens are answers",
    symptoms=(
        "return_assistant_tokens_mask==True but chat template does not contain `{% generation %}` keyword",
        "Cannot use chat template functions because tokenizer.chat_template is not set",
        "assistant_masks is all zeros",
    ),
    explanation="A loss on answers needs to know which tokens are answers. A template says so by `{{% generation"
    " %}}…{{% endgeneration %}}` around them; without these, Aboard finds answers by what the template writes around"
    " them. That fails without a template, where it refuses the conversation (two users in a row), or where it renders"
    " an answer differently once other turns follow, as those do that drop earlier thoughts.",
    leads_to=("data-no-loss", "data-eos"),
    fixes={
        "none": FixCommand(_TEMPLATE + "    # the tokenizer has none of its own"),
        "markers": FixCommand(_TEMPLATE + "    # with {{% generation %}} … {{% endgeneration %}} around answers"),
        "last": FixCommand("{again:shell aboard data --loss-on last}    # `data: {{loss_on: last}}`, last answer only"),
        **_PASS,
    },
)

NO_LOSS = Diagnosis(
    code="data-no-loss",
    title="Rows have no supervised token",
    symptoms=("loss is 0.0", "loss is nan", "UserWarning: This instance will be ignored in loss calculation"),
    explanation="No token of theirs has a loss: nobody answers, the answer is empty, or the mask covers all. They cost"
    " as much time as other rows, and the curve looks fine; `aboard data FILE --show 5` shows the mask.",
    fixes={
        "all": FixCommand(
            "{again:shell aboard data --loss-on all}    # `data: {{loss_on: all}}`, to learn prompts too"
        ),
        "answered": FixCommand(
            "jq -c 'select(any(.messages[]; .role == \"assistant\"))' {file} > answered.jsonl"
            "    # keeps rows that have an answer"
        ),
        **_PASS,
    },
)

EOS = Diagnosis(
    code="data-eos",
    title="The end token is never supervised",
    symptoms=("the fine-tuned model doesn't stop", "generates until max_new_tokens", "repeats itself endlessly"),
    explanation="A model learns to stop from the end token behind answers. It is missing, or masked because padding is"
    " the same token (huggingface/trl#1623) or the template closes its marker before it (huggingface/trl#5988).",
    fixes={
        "no-token": FixCommand("grep eos_token tokenizer_config.json    # beside the tokenizer; name the token there"),
        "hidden": FixCommand(_TEMPLATE + "    # a template with the end token before {{% endgeneration %}}"),
        "chat": FixCommand(_TEMPLATE + "    # a template that writes the end token behind each answer"),
        **_PASS,
    },
)

DOUBLE_BOS = Diagnosis(
    code="data-double-bos",
    title="Rows begin with two begin-of-sequence tokens",
    symptoms=(
        "the model got worse after fine-tuning",
        "Added a BOS token to the prompt as specified by the model but the prompt also starts with a BOS token",
    ),
    explanation="The template writes the token, and the tokenizer or the text adds one; the model has never seen two.",
    fixes={"chat": FixCommand(_TEMPLATE + "    # a template that writes {{{{ bos_token }}}} once"), **_PASS},
)

CUT = Diagnosis(
    code="data-cut",
    title="Answers are cut off",
    symptoms=("answers break off in the middle of a sentence", "Token indices sequence length is longer than"),
    explanation="The row is longer than `max_length`, and the end of its answer is cut off, with the token that says"
    " stop. If the prompt alone is longer, nothing of it is left; `--stats` shows lengths.",
    fixes={
        "most": FixCommand(_LENGTH + "    # `data: {{max_length: {length}}}`, enough for 99 % of the rows"),
        "every": FixCommand(_LENGTH + "    # `data: {{max_length: {length}}}`, enough for all"),
        **_PASS,
    },
)

FORMAT = Diagnosis(
    code="data-format",
    title="The format looks guessed wrong",
    symptoms=("the model answers with questions", "the model speaks as the user", "all prompts are empty"),
    explanation="The columns fit a format, but what they hold doesn't look like it: prompts are empty, answers are"
    " questions, the assistant speaks first, or a text is a conversation that was rendered before.",
    remedy="Type `--format NAME`, or rename columns: `jq -c '{prompt: .answer, completion: .question}' FILE`.",
    leads_to=("data-no-loss", "data-broken"),
    fixes={
        "several": Advice("say which: {formats}"),
        "unknown": Advice("write one of: {formats}"),
        "text-column": Advice("leave one of them out"),
        "unread": Advice("look at the file"),
        "preferences": Advice("make rows of prompt and completion from the chosen answers"),
        "plain": Advice("for plain text write text_column: {column}"),
        "columns": Advice("rename the columns"),
        "show": FixCommand("{again:shell aboard data --show 2}    # shows what is taken for what"),
        "json": FixCommand("jq -c '{{messages: (.text | fromjson)}}' FILE.jsonl > messages.jsonl    # makes rows"),
        "other": FixCommand(
            "{again:shell aboard data --format NAME}    # `data: {{format: NAME}}`, with the right one"
        ),
        **_PASS,
    },
)

LEAK = Diagnosis(
    code="data-leak",
    title="Validation rows are trained on",
    symptoms=("validation loss is lower than training loss", "eval_loss falls and the model gets worse"),
    explanation="Rows with equal content are in both: the validation loss then measures what was memorised.",
    fixes={
        "apart": FixCommand("grep -hvxFf {held} {files:words} > train-only.jsonl    # leaves out what is held back"),
        **_PASS,
    },
)

DUPLICATES = Diagnosis(
    code="data-duplicates",
    title="Rows are there more than once",
    symptoms=("loss drops at the start of the second epoch", "the model recites training rows"),
    explanation="Their content is exactly equal, whatever other columns say. A file that was named twice, or whose"
    " parts overlap, shows as a third of the rows or more. To make a row count twice, use weights.",
    fixes={
        "once": FixCommand("awk '!seen[$0]++' {files:words} > once.jsonl    # keeps the first of equal lines"),
        **_PASS,
    },
)

SPECIAL_TEXT = Diagnosis(
    code="data-special-text",
    title="Control tokens stand in the data as text",
    severity=Severity.WARN,
    symptoms=("<|im_end|> in the middle of a message", "<|endoftext|> in a document", "roles are confused"),
    explanation="To the tokenizer, the text `<|im_end|>` is the token: a turn ends there, and whoever writes it into a"
    " prompt speaks as somebody else. Give rows that were rendered before as plain text.",
    fixes={"mend": FixCommand("sed {script} {file} > mended.jsonl    # takes that token out"), **_PASS},
)

OUTLIER = Diagnosis(
    code="data-outlier",
    title="A row is far longer than the others",
    severity=Severity.INFO,
    symptoms=("one step takes far longer than the others", "CUDA out of memory at one step only"),
    explanation="It is over twenty times as long as 99 % of the rows: two files in one row, a page of binary data.",
    fixes={
        "line": FixCommand("sed -n {script:shell 17p} {file} | cut -c 1-300    # shows it"),
        "lengths": FixCommand("{again:shell aboard data --stats}    # shows how long rows are"),
    },
)
