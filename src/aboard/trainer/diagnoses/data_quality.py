"""Diagnoses of the data check. Imports no numpy: `aboard why` shows them without the train extra, too."""

from aboard.diagnoses.diagnosis import Diagnosis, warning
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.output_patterns import cause

# `again` is the user's command with one more option.
_PASS = {"allow": "{again:shell aboard data --allow CODE}    # if this is intended"}
_TEMPLATE = "{again:shell aboard data --template FILE}"
_LENGTH = "{again:shell aboard data --max-length LENGTH}"
# `script` is already quoted.
_SHOW_ROWS = {
    "line": "sed -n {script:shell 17p} {file} | cut -c 1-300    # shows the first one",
    "rows": "aboard data {file} --show 5    # shows the content of rows",
}

# `filter` is a jq program.
_KEEP = {"keep": "jq -cR {filter} {file} > {kept}    # keeps the rows that are right"}

NO_ROWS = Diagnosis(
    code="data-no-rows",
    title="the files contain no rows",
    symptoms=("ValueError: num_samples should be a positive integer value, but got num_samples=0", "0 examples"),
    explanation="The file may be empty, it may be the wrong file, or the requested split may be empty.",
    fixes="ls -l {file}    # is this the intended file?",
)

BROKEN = Diagnosis(
    code="data-broken",
    title="rows can't be read",
    symptoms=(
        "json.decoder.JSONDecodeError: Unterminated string starting at",
        "pyarrow.lib.ArrowInvalid: JSON parse error: Missing a closing quotation mark in string",
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
    ),
    explanation="A line is not JSON, is not UTF-8, or does not fit the format: a column is missing or has the wrong"
    " type, or a role is unknown. If the last line is broken, a copy was probably interrupted and rows are missing,"
    " so copy the file again.",
    leads_to=("data-no-rows",),
    fixes={
        **_SHOW_ROWS,
        "names": "aboard data {file} --json    # lists these rows; rewrite the file without them",
        "delete": "sed -i {script:shell 17d} {file}    # deletes them",
        **_KEEP,
        **_PASS,
    },
    log_fix="aboard data FILE    # shows the file and the line",
    patterns=cause(
        r"JSONDecodeError|ArrowInvalid|DatasetGenerationError|pyarrow\.lib\.\w+|UnicodeDecodeError"
        r"|UnidentifiedImageError|zipfile\.BadZipFile|DatasetGenerationCastError",
        "A data file can't be read. It may be truncated, or its format may differ from the rest.",
        weight=2,
    ),
)

EMPTY = Diagnosis(
    code="data-empty",
    title="rows contain no text",
    symptoms=("loss is nan", "the model answers with nothing"),
    explanation="All texts in a row are blank, or the row has no tokens. Often the text is in a column with a"
    " different name.",
    remedy="Remove the rows with `jq -c 'select(.text != \"\")' FILE > KEPT`, or allow them with `--allow data-empty`.",
    leads_to=("data-no-loss",),
    fixes={**_SHOW_ROWS, **_PASS},
)

TEMPLATE = Diagnosis(
    code="data-template",
    title="the chat template doesn't show which tokens are answers",
    symptoms=(
        "return_assistant_tokens_mask==True but chat template does not contain `{% generation %}` keyword",
        "Cannot use chat template functions because tokenizer.chat_template is not set",
        "assistant_masks is all zeros",
    ),
    explanation="For a loss on answers, Aboard must know which tokens are answers. A template can mark them with `{{%"
    " generation %}}…{{% endgeneration %}}`; otherwise Aboard infers them from the text that the template adds around"
    " answers. That fails if there is no template, if the template rejects the conversation (for example two user"
    " turns in a row), or if it renders an answer differently once other turns follow (some templates drop the"
    " reasoning of earlier turns).",
    leads_to=("data-no-loss", "data-eos"),
    fixes={
        "none": (_TEMPLATE + "    # the tokenizer has none"),
        "markers": (_TEMPLATE + "    # with {{% generation %}} … {{% endgeneration %}} around answers"),
        "last": "{again:shell aboard data --loss-on last}    # `data: {{loss_on: last}}`, only the last answer",
        **_PASS,
    },
)

NO_LOSS = Diagnosis(
    code="data-no-loss",
    title="rows have no supervised token",
    symptoms=("loss is 0.0", "loss is nan", "UserWarning: This instance will be ignored in loss calculation"),
    explanation="None of a row's tokens enters the loss: there is no answer, the answer is empty, or the mask covers"
    " everything. Such a row costs as much time as any other, and the loss curve looks normal. `aboard data FILE"
    " --show 5` shows the mask.",
    fixes={
        "all": "{again:shell aboard data --loss-on all}    # `data: {{loss_on: all}}`, to train on prompts too",
        "answered": "jq -c 'select(any(.messages[]; .role == \"assistant\"))' {file} > answered.jsonl"
        "    # keeps rows with an answer",
        **_PASS,
    },
)

EOS = Diagnosis(
    code="data-eos",
    title="the end token is never supervised",
    symptoms=("the fine-tuned model doesn't stop", "generates until max_new_tokens", "repeats itself endlessly"),
    explanation="A model learns to stop from the end token after answers. Here the end token is missing, or it is"
    " masked: either it is also the padding token (huggingface/trl#1623), or the template's `generation` block ends"
    " before it (huggingface/trl#5988).",
    fixes={
        "no-token": "grep eos_token tokenizer_config.json    # next to the tokenizer; set the token there",
        "hidden": (_TEMPLATE + "    # a template with the end token before {{% endgeneration %}}"),
        "chat": (_TEMPLATE + "    # a template that writes the end token after each answer"),
        **_PASS,
    },
)

DOUBLE_BOS = Diagnosis(
    code="data-double-bos",
    title="rows begin with two begin-of-sequence tokens",
    symptoms=(
        "the model got worse after fine-tuning",
        "Added a BOS token to the prompt as specified by the model but the prompt also starts with a BOS token",
    ),
    explanation="The chat template writes a begin-of-sequence token, and the tokenizer or the text adds another. The"
    " model has never seen two of them in a row.",
    fixes={"chat": (_TEMPLATE + "    # a template that writes {{{{ bos_token }}}} once"), **_PASS},
)

CUT = Diagnosis(
    code="data-cut",
    title="answers are truncated",
    symptoms=("answers break off in the middle of a sentence", "Token indices sequence length is longer than"),
    explanation="A row is longer than `max_length`, so the end of its answer is cut off, including the end token. If"
    " the prompt alone is longer, none of the answer is left. `aboard data FILE --stats` shows the lengths.",
    fixes={
        "most": (_LENGTH + "    # `data: {{max_length: {length}}}`, enough for 99 % of the rows"),
        "every": (_LENGTH + "    # `data: {{max_length: {length}}}`, enough for all"),
        **_PASS,
    },
)

FORMAT = Diagnosis(
    code="data-format",
    title="the detected format is probably wrong",
    symptoms=("the model answers with questions", "the model speaks as the user", "all prompts are empty"),
    explanation="The columns match a format, but their content does not. For example, prompts are empty, answers are"
    " questions, the assistant speaks first, or a text is an already rendered conversation.",
    remedy="Rename the columns, for example: `jq -c '{prompt: .question, completion: .answer}' FILE > NEW`. Write rows"
    " of different formats to different files: each file has its own format.",
    leads_to=("data-no-loss", "data-broken"),
    fixes={
        "several": Advice("choose one: {formats}"),
        "unknown": Advice("write one of: {formats}"),
        "text-column": Advice("remove one of them"),
        "unread": Advice("check the file"),
        "preferences": Advice("convert the chosen answers to rows with prompt and completion"),
        "plain": Advice("for plain text write text_column: {column}"),
        "pair": "jq -c {filter} {file} > {kept}    # the names that Aboard knows",
        "columns": Advice("rename the columns"),
        "show": "{again:shell aboard data --show 2}    # shows how rows are interpreted",
        "json": "jq -c '{{messages: (.text | fromjson)}}' FILE.jsonl > messages.jsonl    # converts the rows",
        "split": "jq -cR {fits} {file} > {kept}    # the rows of one format\n"
        "jq -cR {rest} {file} > {others}    # the other rows; pass both files, each has its own format",
        "role": "jq -c {filter} {file} > {kept}    # unknown roles become user; write assistant if they answer",
        "swap": "jq -c {filter} {file} > {kept}    # swaps prompts and answers",
        **_PASS,
    },
)

LEAK = Diagnosis(
    code="data-leak",
    title="validation rows are in the training data",
    symptoms=("validation loss is lower than training loss", "eval_loss falls and the model gets worse"),
    explanation="Rows with the same content are in both sets, so the validation loss measures memorization.",
    fixes={"apart": "grep -hvxFf {held} {files:words} > {kept}    # removes the validation rows", **_PASS},
)

DUPLICATES = Diagnosis(
    code="data-duplicates",
    title="duplicate rows",
    symptoms=("loss drops at the start of the second epoch", "the model recites training rows"),
    explanation="Several rows have the same content. Columns that training does not use are not compared. If a third or"
    " more of the rows are duplicates, a file is probably listed twice, or files overlap. To train on some rows more"
    " often, give their file a larger `weight`.",
    fixes={"once": "awk '!seen[$0]++' {files:words} > {kept}    # keeps one copy of each line", **_PASS},
)

SPECIAL_TEXT = warning(
    code="data-special-text",
    title="control tokens appear as text in the data",
    symptoms=("<|im_end|> in the middle of a message", "<|endoftext|> in a document", "roles are confused"),
    explanation="The tokenizer turns text such as `<|im_end|>` into a control token, so a turn ends there, and anyone"
    " who writes the text into a prompt can impersonate another role. If rows are already rendered, provide them as"
    " plain text.",
    fixes={"mend": "sed {script} {file} > mended.jsonl    # removes that token", **_PASS},
)

BLANK = Diagnosis(
    code="data-blank",
    title="prompts or answers are missing",
    symptoms=("the model answers with nothing", "every answer is None", "the model stops at once"),
    explanation="An answer has no visible character, or only the word that a program writes for a missing value; or an"
    " answer has no prompt. Often the text is in a column with a different name, or an export failed for these rows.",
    leads_to=("data-no-loss",),
    fixes={**_SHOW_ROWS, **_KEEP, **_PASS},
)

SAME = Diagnosis(
    code="data-same-answer",
    title="answers don't depend on their prompts",
    symptoms=("the model gives the same answer to everything", "the model refuses every request"),
    explanation="Many different prompts have the same answer, or the same form letter. Classes that are out of balance"
    " show the same: the model then learns to name the most frequent one.",
    fixes={**_SHOW_ROWS, **_PASS},
)

CONTRADICTION = Diagnosis(
    code="data-contradiction",
    title="equal prompts have different answers",
    symptoms=("the loss stops falling early", "the model answers at random"),
    explanation="Several rows have the same prompt and different answers. Often the part of the prompt that"
    " distinguishes them, such as a document or an image, is in a column that training doesn't read.",
    fixes={**_SHOW_ROWS, **_PASS},
)

ECHO = Diagnosis(
    code="data-echo",
    title="answers repeat their prompts",
    symptoms=("the model repeats the question",),
    explanation="The answer is the prompt again, contains all of it, or is already in the prompt. Often a column was"
    " copied twice, or whole conversations were stored as answers.",
    fixes={**_SHOW_ROWS, **_PASS},
)

DAMAGED = Diagnosis(
    code="data-damaged",
    title="text is damaged",
    symptoms=("the model writes \u00c3\u00a9 instead of \u00e9", "the model writes HTML", "answers contain \\\\n"),
    explanation="Text was decoded with the wrong character set, escaped or printed by a program, still has markup or"
    " tokens of a tokenizer in it, or its letters or words are missing, doubled or out of order.",
    fixes={**_SHOW_ROWS, **_PASS},
)

UNFINISHED = warning(
    code="data-unfinished",
    title="answers are cut off in the file",
    symptoms=("answers break off in the middle of a sentence", "the model stops in the middle of a word"),
    explanation="Many answers have exactly the greatest length, or stop in the middle of a sentence. Usually an export"
    " or the limit of a generating model cut them.",
    fixes={**_SHOW_ROWS, **_PASS},
)
