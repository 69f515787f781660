"""Splits a shell script into words and operators."""

import re
from collections.abc import Iterator

from aboard.core.launchers.shell.syntax import Part, UnreadableScriptError, Word
from aboard.lazy_dataclass import dataclass

_OPERATORS = ("<<<", "<<-", "&>>", "<<", ">>", "&>", ">&", "<&", ">|", "&&", "||", ";;", ";", "&", "|", "<", ">")
_OPERATOR_START = frozenset(";&|<>")
_END = frozenset(" \t\n;&|<>()")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!]")
_TEE = re.compile(r"\s*tee\s[^;&|<>`()]*(>\s*&\s*[12]\s*)?")
_HEREDOC = re.compile(r"[ \t]*(['\"\\]?)([A-Za-z_][A-Za-z0-9_]*)\1?")


@dataclass(frozen=True, kw_only=True)
class Token:
    """A word, or an operator (a newline is one) if `operator` is not empty."""

    line: int
    operator: str = ""
    word: Word = ()
    attached: bool = False

    @property
    def bare(self) -> str:
        """The text of an unquoted word without expansions, which may be a keyword; "" for others."""
        one = self.word[0] if len(self.word) == 1 else None
        return one.text if one and one.kind == "text" and not one.quoted else ""


def split_tokens(text: str) -> Iterator[Token]:
    """Splits the script; the text of a here-document is the word after its operator."""
    return _Lexer(text).run()


def parse_text(text: str, line: int) -> Word:
    """The parts of a text in which expansions happen but quotes have no meaning, as in a here-document."""
    lexer = _Lexer(text)
    lexer.line = line
    parts: list[Part] = []
    lexer.read_quoted(parts, end="", heredoc=True)
    return tuple(parts)


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        # Where the here-documents of the current line end; they start on the next one.
        self.after_heredocs: int | None = None

    def run(self) -> Iterator[Token]:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\n":
                yield Token(line=self.line, operator="\n")
                self._skip(1 if self.after_heredocs is None else self.after_heredocs - self.at)
                self.after_heredocs = None
            elif char in " \t\r":
                self._skip(1)
            elif self.text.startswith("\\\n", self.at):
                self._skip(2)
            elif char == "#":
                self._skip(self._find_line_end(self.at) - self.at)
            elif self.text.startswith("((", self.at):
                line = self.line
                yield Token(line=line, operator="((", word=(_text(self._read_arithmetic()),))
            elif char in "()":
                yield Token(line=self.line, operator=char)
                self._skip(1)
            elif char in _OPERATOR_START:
                yield from self._read_operator()
            else:
                line = self.line
                yield Token(line=line, word=self._read_word(), attached=self.text[self.at : self.at + 1] in {"<", ">"})

    def _read_operator(self) -> Iterator[Token]:
        operator = next(each for each in _OPERATORS if self.text.startswith(each, self.at))
        line = self.line
        self._skip(len(operator))
        if operator in {"<<", "<<-"}:
            match = _HEREDOC.match(self.text, self.at)
            if not match:
                raise UnreadableScriptError(line, "the end of a here-document is not a plain word")
            self._skip(len(match[0]))
            yield Token(line=line, operator="<<")
            yield Token(
                line=line, word=self._read_heredoc(match[2], is_literal=bool(match[1]), strips_tabs=operator == "<<-")
            )
            return
        if operator in {"<", ">"} and self.text.startswith("(", self.at):
            is_redirected = self.text[max(0, self.at - 9) : self.at - 1].rstrip().endswith(">")
            if operator == "<" or not is_redirected or not _TEE.fullmatch(self._read_balanced("(", ")")):
                raise UnreadableScriptError(line, f"process substitution {operator}( )")
            # `> >(tee FILE)`: the output still goes where it went.
            yield Token(line=line, word=(_text("/dev/stdout", quoted=True),))
            return
        yield Token(line=line, operator=operator)

    def _read_heredoc(self, mark: str, *, is_literal: bool, strips_tabs: bool) -> Word:
        start = self.after_heredocs
        if start is None:
            start = self._find_line_end(self.at) + 1
        first, at = self.line + self.text.count("\n", self.at, start), start
        lines: list[str] = []
        while at < len(self.text):
            line = self.text[at : self._find_line_end(at)]
            at += len(line) + 1
            line = line.lstrip("\t") if strips_tabs else line
            if line == mark:
                self.after_heredocs = at
                text = "".join(f"{each}\n" for each in lines)
                return (_text(text, quoted=True),) if is_literal else parse_text(text, first)
            lines.append(line)
        raise UnreadableScriptError(self.line, f"the here-document has no closing {mark}")

    def _read_word(self) -> Word:
        parts: list[Part] = []
        while self.at < len(self.text) and self.text[self.at] not in _END:
            char = self.text[self.at]
            if char == "'":
                parts.append(_text(self._read_until("'"), quoted=True))
            elif char == '"':
                self._skip(1)
                parts.append(_text("", quoted=True))
                self.read_quoted(parts, end='"')
            elif char == "\\":
                if self.text[self.at + 1 : self.at + 2] != "\n":
                    parts.append(_text(self.text[self.at + 1 : self.at + 2], quoted=True))
                self._skip(2)
            elif char == "$" and self.text[self.at + 1 : self.at + 2] in {"'", '"'}:
                raise UnreadableScriptError(self.line, "the quotes $'…'")
            elif char in "$`":
                parts.append(self._read_expansion(quoted=False))
            else:
                end = self.at
                while end < len(self.text) and self.text[end] not in _END and self.text[end] not in "'\"\\$`":
                    end += 1
                parts.append(_text(self.text[self.at : end]))
                self._skip(end - self.at)
            if parts[-1:] and _opens_array(parts) and self.text.startswith("(", self.at):
                break
        return tuple(parts)

    def read_quoted(self, parts: list[Part], *, end: str, heredoc: bool = False) -> None:
        """Reads up to the closing quote, or the whole text of a here-document."""
        special = '$`"\\\n' if not heredoc else "$`\\\n"
        while self.at < len(self.text):
            char = self.text[self.at]
            if end and char == end:
                self._skip(1)
                return
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in special:
                if self.text[self.at + 1 : self.at + 2] != "\n":
                    parts.append(_text(self.text[self.at + 1 : self.at + 2], quoted=True))
                self._skip(2)
            elif char in "$`":
                parts.append(self._read_expansion(quoted=True))
            else:
                parts.append(_text(char, quoted=True))
                self._skip(1)
        if end:
            raise UnreadableScriptError(self.line, "a quote is not closed")

    def _read_expansion(self, *, quoted: bool) -> Part:
        if self.text[self.at] == "`":
            inside = self._read_until("`").replace("\\`", "`")
            return Part(kind="command", text=inside, quoted=quoted)
        self._skip(1)
        if self.text.startswith("((", self.at):
            return Part(kind="arithmetic", text=self._read_arithmetic(), quoted=quoted)
        if self.text.startswith("(", self.at):
            return Part(kind="command", text=self._read_balanced("(", ")"), quoted=quoted)
        if self.text.startswith("{", self.at):
            return Part(kind="parameter", text=self._read_balanced("{", "}"), quoted=quoted)
        match = _PARAMETER.match(self.text, self.at)
        if not match:
            return _text("$", quoted=quoted)
        self._skip(len(match[0]))
        return Part(kind="parameter", text=match[0], quoted=quoted)

    def _read_until(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        while quote == "`" and end > 0 and self.text[end - 1] == "\\":
            end = self.text.find(quote, end + 1)
        if end < 0:
            raise UnreadableScriptError(self.line, "a quote is not closed")
        inside = self.text[self.at + 1 : end]
        self._skip(end + 1 - self.at)
        return inside

    def _read_arithmetic(self) -> str:
        inside = self._read_balanced("(", ")")
        if not (inside.startswith("(") and inside.endswith(")")):
            raise UnreadableScriptError(self.line, "a group in ( ) directly inside another")
        return inside[1:-1].replace("\\\n", "")

    def _read_balanced(self, opening: str, closing: str) -> str:
        """The text between a pair of brackets; brackets in quotes don't count."""
        start, depth, quote, at = self.at, 0, "", self.at
        while at < len(self.text):
            char = self.text[at]
            if char == "\\" and quote != "'":
                at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if depth == 0:
                    self._skip(at + 1 - start)
                    return self.text[start + 1 : at]
            at += 1
        raise UnreadableScriptError(self.line, f"a {opening} is not closed")

    def _find_line_end(self, at: int) -> int:
        end = self.text.find("\n", at)
        return len(self.text) if end < 0 else end

    def _skip(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count


def _text(text: str, *, quoted: bool = False) -> Part:
    return Part(kind="text", text=text, quoted=quoted)


def _opens_array(parts: list[Part]) -> bool:
    return len(parts) == 1 and not parts[0].quoted and parts[0].text.endswith("=")
