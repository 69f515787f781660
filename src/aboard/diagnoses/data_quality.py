"""Rows that the gate finds fault with. Without numpy: `aboard why` tells them in the light install, too."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, Command
from aboard.diagnoses.messages import cause

_ALLOW = "If it is meant to be so, let it pass: `--allow {code}`, or `data: {{allow: [{code}]}}` in aboard.yaml."

# `again` is the command that was given, with one option more.
_PASS = {"allow": Command("{again:shell}    # if it is meant to be so")}
# `script` is in quotes already.
_LOOK = {
    "line": Command("sed -n {script:shell} {file} | cut -c 1-300    # shows the first of them"),
    "rows": Command("aboard data {file} --show 5    # shows what rows hold"),
}

NO_ROWS = Diagnosis(
    code="data-no-rows",
    title="There is no row in the files",
    symptoms=("ValueError: num_samples should be a positive integer value, but got num_samples=0", "0 examples"),
    explanation="The file is empty, its name is that of another one, or the split that was asked for is empty.",
    remedy="Look at it with `ls -l FILE` and `head -c 300 FILE`, and name the right one.",
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
    explanation="A line is no JSON, no UTF-8, or no row of the format: a column is missing or has another type, a"
    " role is unknown. A broken last line means a copy or a download that broke off, and then nobody knows how"
    " much is missing. Aboard reads on and counts them, with file and line, instead of stopping at the first.",
    remedy="Look at a line with `sed -n '17p' FILE | cut -c 1-300`. Compare the size with that of the source, and"
    " copy again if it differs. Delete single lines with `sed -i '17d' FILE`, or keep what can be read with"
    " `jq -cR 'fromjson? | objects' FILE > KEPT`. " + _ALLOW.format(code="data-broken"),
    leads_to=("data-no-rows",),
    fixes={
        **_LOOK,
        "names": Command("aboard data {file} --json    # names them; write the file anew without them"),
        "delete": Command("sed -i {script:shell} {file}    # deletes them"),
        "keep": Command("jq -cR 'fromjson? | objects' {file} > {kept}    # keeps what can be read"),
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
    explanation="All texts of the row are blank, or its list of tokens is empty. Often a part of the file has its"
    " text in a column of another name.",
    remedy="Look at one with `aboard data FILE --show 5`. Take them out with"
    " `jq -c 'select(.text != \"\")' FILE > KEPT`. " + _ALLOW.format(code="data-empty"),
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
    explanation="A loss on answers needs to know which tokens are answers. A template says so by"
    " `{{% generation %}}…{{% endgeneration %}}` around them; most published ones don't, and then other trainers may"
    " train on nothing (Liquid4All/liquid-finetune#37). Aboard also finds answers by what the template writes"
    " around them. That fails where there is no template, where it refuses the conversation (two users in a row),"
    " or where it renders an answer otherwise once other turns follow, as those do that drop earlier thoughts.",
    remedy="Give a template that has the markers: `--template FILE`, or `data: {template: FILE}`. Put"
    " `{% generation %}` before the content of the assistant and `{% endgeneration %}` behind its end token. Where"
    " earlier answers are rendered otherwise, train on the last one only: `--loss-on last`.",
    leads_to=("data-no-loss", "data-eos"),
    fixes={
        "none": Command("{again:shell}    # the tokenizer has none of its own"),
        "markers": Command("{again:shell}    # with {{% generation %}} … {{% endgeneration %}} around answers"),
        "last": Command("{again:shell}    # `data: {{loss_on: last}}`, the last answer only"),
        **_PASS,
    },
)

NO_LOSS = Diagnosis(
    code="data-no-loss",
    title="Rows have no supervised token",
    symptoms=("loss is 0.0", "loss is nan", "UserWarning: This instance will be ignored in loss calculation"),
    explanation="The loss is taken of none of their tokens: nobody answers in them, the answer is empty, or the"
    " mask covers all. They cost as much time as other rows, and the curve looks fine.",
    remedy="See which tokens are supervised with `aboard data FILE --show 5`. Take rows without an answer out, or"
    " take the loss of all tokens: `--loss-on all`. " + _ALLOW.format(code="data-no-loss"),
    fixes={
        "all": Command("{again:shell}    # `data: {{loss_on: all}}`, if prompts shall be learned too"),
        "answered": Command(
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
    explanation="A model learns to stop by being shown the end token behind answers, with a loss on it. It is"
    " masked when padding is the same token and padding is masked (huggingface/trl#1623), when the template closes"
    " its marker before the end token (huggingface/trl#5988), or it isn't written at all.",
    remedy="Look at how a row ends: `aboard data FILE --show 1`. In the template, put the end token before"
    " `{% endgeneration %}`; of plain text, see that the tokenizer has an `eos_token`. "
    + _ALLOW.format(code="data-eos"),
    fixes={
        "no-token": Command("grep eos_token tokenizer_config.json    # beside the tokenizer; name the token there"),
        "hidden": Command(
            "{again:shell}    # a template with the end token before {{% endgeneration %}}, not behind it"
        ),
        "chat": Command("{again:shell}    # a template that writes the end token behind each answer"),
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
    explanation="The chat template writes the token, and the tokenizer or the text itself adds another. The model"
    " has never been shown two and won't be when it is used.",
    remedy="Take `{{ bos_token }}` out of the template, or the token out of the text: it is added anyway. "
    + _ALLOW.format(code="data-double-bos"),
    fixes={"chat": Command("{again:shell}    # a template that writes {{{{ bos_token }}}} once"), **_PASS},
)

CUT = Diagnosis(
    code="data-cut",
    title="Answers are cut off",
    symptoms=("answers break off in the middle of a sentence", "Token indices sequence length is longer than"),
    explanation="The row is longer than `max_length`, and what is cut off is the end of its answer, with the token"
    " that says stop. Where the prompt alone is longer, nothing of the answer is left.",
    remedy="Ask for longer rows: `--max-length N`, or `data: {max_length: N}`; `aboard data FILE --stats` shows how"
    " long they are. Or take the longest rows out. " + _ALLOW.format(code="data-cut"),
    fixes={
        "most": Command("{again:shell}    # `data: {{max_length: {length}}}`, enough for 99 % of the rows"),
        "every": Command("{again:shell}    # `data: {{max_length: {length}}}`, enough for all"),
        **_PASS,
    },
)

FORMAT = Diagnosis(
    code="data-format",
    title="The format looks guessed wrong",
    symptoms=("the model answers with questions", "the model speaks as the user", "all prompts are empty"),
    explanation="The columns of the file fit a format, but what they hold doesn't look like it: prompts are empty,"
    " answers are questions, the assistant speaks first, or a text is a conversation that somebody rendered"
    " before.",
    remedy="Look at it with `aboard data FILE --show 2`. Name the format, `--format NAME` or `data: {format:"
    " NAME}`, or rename the columns: `jq -c '{prompt: .answer, completion: .question}' FILE > SWAPPED`. "
    + _ALLOW.format(code="data-format"),
    leads_to=("data-no-loss", "data-broken"),
    fixes={
        "several": Advice("say which: {formats}"),
        "unknown": Advice("write one of: {formats}"),
        "text-column": Advice("leave one of them out"),
        "unread": Advice("look at the file"),
        "preferences": Advice("make rows of prompt and completion from the chosen answers"),
        "plain": Advice("for plain text write text_column: {column}"),
        "columns": Advice("rename the columns"),
        "show": Command("{again:shell}    # shows what is taken for what"),
        "json": Command(
            "jq -c '{{messages: (.text | fromjson)}}' FILE.jsonl > messages.jsonl    # makes rows of the strings"
        ),
        "other": Command("{again:shell}    # `data: {{format: NAME}}`, with the right one"),
        **_PASS,
    },
)

LEAK = Diagnosis(
    code="data-leak",
    title="Validation rows are trained on",
    symptoms=("validation loss is lower than training loss", "eval_loss falls and the model gets worse"),
    explanation="Rows with equal content are in both. The validation loss then says how well rows were learned by"
    " heart.",
    remedy="Take them out of the training set: `grep -vxFf VALIDATION TRAIN > KEPT` where lines are equal. "
    + _ALLOW.format(code="data-leak"),
    fixes={
        "apart": Command(
            "grep -hvxFf {held} {files:words} > train-only.jsonl    # leaves lines out that are held back"
        ),
        **_PASS,
    },
)

DUPLICATES = Diagnosis(
    code="data-duplicates",
    title="Rows are there more than once",
    symptoms=("loss drops at the start of the second epoch", "the model recites training rows"),
    explanation="Content is equal to the letter, whatever other columns say; what is nearly equal isn't counted. A"
    " file that was named twice, or whose parts overlap, shows as a third of the rows or more. To say"
    " a row counts twice, weights are the better way.",
    remedy="Keep the first of equal lines: `awk '!seen[$0]++' FILE > ONCE`. " + _ALLOW.format(code="data-duplicates"),
    fixes={
        "once": Command("awk '!seen[$0]++' {files:words} > once.jsonl    # keeps the first of equal lines"),
        **_PASS,
    },
)

SPECIAL_TEXT = Diagnosis(
    code="data-special-text",
    title="Control tokens stand in the data as text",
    severity=Severity.WARN,
    symptoms=("<|im_end|> in the middle of a message", "<|endoftext|> in a document", "roles are confused"),
    explanation="To the tokenizer, the text `<|im_end|>` is the token: a turn ends where it stands, and whoever"
    " writes it into a prompt speaks as somebody else. Often rows have been through a template before, and go"
    " through it twice.",
    remedy="See it with `aboard data FILE --show 5`. Give rendered rows as plain text, or take the tokens out:"
    " `sed 's/<|im_end|>//g' FILE > KEPT`. " + _ALLOW.format(code="data-special-text"),
    fixes={
        "mend": Command("sed {script} {file} > mended.jsonl    # takes that token out"),
        **_PASS,
    },
)

OUTLIER = Diagnosis(
    code="data-outlier",
    title="A row is far longer than the others",
    severity=Severity.INFO,
    symptoms=("one step takes far longer than the others", "CUDA out of memory at one step only"),
    explanation="It is more than twenty times as long as 99 % of the rows: two files in one row, a page of binary"
    " data.",
    remedy="Look at it: `sed -n '17p' FILE | cut -c 1-300`.",
    fixes={
        "line": Command("sed -n {script:shell} {file} | cut -c 1-300    # shows it"),
        "lengths": Command("{again:shell}    # shows how long rows are"),
    },
)
