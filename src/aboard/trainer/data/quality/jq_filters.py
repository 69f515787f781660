"""jq programs that repair a file of JSON lines: fixes which keep, split, swap or rename rows of a format."""

from aboard.trainer.data.intake.compressed_files import COMPRESSED_SUFFIXES
from aboard.trainer.data.intake.data_files import name_new_file
from aboard.trainer.data.rows import RowLocation

_TURNS = "(.messages // .conversations // .conversation)"
_SENDERS = (
    '"system","human","user","gpt","assistant","chatgpt","bing","bard","model","bot","tool","function","observation",'
    '"tool_response","function_response","function_call","tool_call"'
)
_ROLES = '"system","developer","user","assistant","tool","function"'
_FITS = {
    "messages": f'({_TURNS} | type == "array" and length > 0 and all(.[]; type == "object" and (.role | IN({_ROLES}))'
    ' and ((.content | type == "string" or type == "array") or (.tool_calls // .function_call) != null)))',
    "sharegpt": f'({_TURNS} | type == "array" and length > 0 and all(.[]; type == "object" and'
    f' (.value | type == "string") and (.from | type == "string" and (ascii_downcase | IN({_SENDERS})))))',
    "alpaca": '(([.instruction, .output, .input // "", .system // ""] | all(.[]; type == "string")) and (.history // []'
    ' | length == 0) and [.instruction, .output, .input] != ["", "", ""])',
    "prompt-completion": '(([.prompt, .completion] | all(.[]; type == "string") or all(.[]; type == "array")) and'
    ' [.prompt, .completion] != ["", ""])',
    "text": '(.text | type == "string" and test("\\\\S"))',
    "tokens": '(.input_ids | type == "array" and length > 0)',
}
_ANSWERED = {
    "messages": f'({_TURNS} | all(.[]; .role != "assistant" or .tool_calls != null'
    ' or (.content | tostring | test("\\\\S"))))',
    "sharegpt": f'({_TURNS} | all(.[]; (.from | IN("gpt","assistant","model","bot") | not)'
    ' or (.value | test("\\\\S"))))',
    "alpaca": '(.output | test("\\\\S"))',
    "prompt-completion": '(.completion | tostring | test("\\\\S"))',
}
_SWAP = {
    "messages": f'({_TURNS}[].role) |= (if . == "user" then "assistant" elif . == "assistant" then "user" else . end)',
    "sharegpt": f'({_TURNS}[].from) |= (if . == "human" then "gpt" elif . == "gpt" then "human" else . end)',
    "alpaca": ".instruction as $asked | .instruction = .output | .output = $asked",
    "prompt-completion": ".prompt as $asked | .prompt = .completion | .completion = $asked",
}


def has_json_lines(location: RowLocation) -> bool:
    """Whether jq can read the file line by line."""
    return location.unit == "line" and not location.file.endswith((*COMPRESSED_SUFFIXES, ".txt"))


def name_output(location: RowLocation, word: str) -> str:
    """The name of a new file beside the old one: `train.kept.jsonl`."""
    return name_new_file(f"{location.file.raw().removesuffix('.jsonl')}.{word}")


def build_fit_filter(formats: str) -> str | None:
    """Selects the objects that fit one of the formats (`messages, text`); None if a format has no such filter."""
    names = formats.split(", ")
    return " or ".join(_FITS[name] for name in names) if set(names) <= set(_FITS) else None


def build_answer_filter(format_name: str) -> str | None:
    """Selects the rows in which every answer has text."""
    return _ANSWERED.get(format_name)


def build_swap_filter(format_name: str) -> str | None:
    """Swaps prompts and answers."""
    return _SWAP.get(format_name)
