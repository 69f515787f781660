"""Parses the tokens of a shell script into its syntax tree."""

import re

from aboard.core.launchers.shell.syntax import (
    Arithmetic,
    Assignment,
    Block,
    Case,
    Choice,
    Command,
    CountingLoop,
    Function,
    Group,
    Loop,
    Part,
    Pipeline,
    Redirect,
    SimpleCommand,
    Step,
    UnreadableScriptError,
    Word,
)
from aboard.core.launchers.shell.tokens import Token, split_tokens

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_REDIRECTS = frozenset({"<", ">", ">>", "<<", "<<<", "&>", "&>>", ">&", "<&", ">|"})
_RESERVED = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})
_UNSUPPORTED = frozenset({"select", "coproc", "function"})
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})


def parse_script(text: str, *, first_line: int = 1) -> Block:
    """Parses a script or the text of `bash -c`; raises UnreadableScriptError with the line."""
    parser = _Parser(text, first_line)
    block = parser.read_block()
    if parser.token is not None:
        raise parser.build_error(f"'{parser.show()}' has no beginning")
    return block


class _Parser:
    def __init__(self, text: str, first_line: int) -> None:
        self._tokens = split_tokens(text)
        self._offset = first_line - 1
        self._line = first_line
        self.token: Token | None = None
        self._advance()

    def build_error(self, reason: str) -> UnreadableScriptError:
        return UnreadableScriptError(self._line, reason)

    def show(self) -> str:
        return self.token.operator or self.token.bare if self.token else "end of the script"

    def read_block(self) -> Block:
        """Steps up to a reserved word, a closing bracket or the end."""
        steps: list[Step] = []
        joined = ""
        while True:
            while self._is("\n", ";"):
                self._advance()
            if self.token is None or self._is(")", ";;") or self.token.bare in _RESERVED:
                return tuple(steps)
            pipeline = self._read_pipeline()
            in_background = self._is("&")
            steps.append(Step(pipeline=pipeline, joined=joined, in_background=in_background))
            joined = self.token.operator if self._is("&&", "||") and self.token else ""
            if joined or in_background:
                self._advance()
            elif not (self.token is None or self._is("\n", ";", ")", ";;")):
                raise self.build_error(f"'{self.show()}' after a command")
            while joined and self._is("\n"):
                self._advance()

    def _read_pipeline(self) -> Pipeline:
        line = self._line
        if self.token is not None and self.token.bare == "time":
            self._advance()
        negated = self.token is not None and self.token.bare == "!"
        if negated:
            self._advance()
        commands = [self._read_command()]
        while self._is("|"):
            self._advance()
            while self._is("\n"):
                self._advance()
            commands.append(self._read_command())
        return Pipeline(line=line, commands=tuple(commands), negated=negated)

    def _read_command(self) -> Command:
        if self.token is None:
            raise self.build_error("a command is missing")
        word, line = self.token.bare, self._line
        if self._is("(("):
            text = self.token.word[0].text
            self._advance()
            return Arithmetic(line=line, text=text)
        if self._is("("):
            raise self.build_error("a subshell ( … )")
        if word in _UNSUPPORTED:
            raise self.build_error(f"'{word}'")
        readers = {"for": self._read_for, "while": self._read_while, "until": self._read_while, "if": self._read_if}
        readers |= {"case": self._read_case, "{": self._read_group}
        if word in readers:
            command = readers[word](line)
            if self.token is not None and self.token.operator in _REDIRECTS:
                raise self.build_error(f"the redirection '{self.show()}' of '{word}'")
            return command
        return self._read_simple(line)

    def _read_for(self, line: int) -> Command:
        self._advance()
        if self._is("(("):
            parts = self.token.word[0].text.split(";") if self.token else []
            if len(parts) != 3:  # noqa: PLR2004 - first; condition; step
                raise self.build_error("for (( )) without its three parts")
            self._advance()
            return CountingLoop(line=line, first=parts[0], condition=parts[1], step=parts[2], body=self._read_do())
        name = self._take_bare()
        words: list[Word] = []
        self._expect("in")
        while self.token is not None and self.token.word and not self.token.operator:
            words.append(self.token.word)
            self._advance()
        return Loop(line=line, name=name, words=tuple(words), body=self._read_do())

    def _read_while(self, line: int) -> Command:
        negated = self._take_bare() == "until"
        condition = self.read_block()
        return Loop(line=line, condition=condition, negated=negated, body=self._read_do())

    def _read_do(self) -> Block:
        while self._is("\n", ";"):
            self._advance()
        self._expect("do")
        body = self.read_block()
        self._expect("done")
        return body

    def _read_if(self, line: int) -> Command:
        branches: list[tuple[Block, Block]] = []
        while self._take_bare() != "else":
            condition = self.read_block()
            self._expect("then")
            branches.append((condition, self.read_block()))
            if self.token is not None and self.token.bare == "fi":
                self._advance()
                return Choice(line=line, branches=tuple(branches))
        branches.append(((), self.read_block()))
        self._expect("fi")
        return Choice(line=line, branches=tuple(branches))

    def _read_case(self, line: int) -> Command:
        self._advance()
        subject = self._take_word()
        self._skip_newlines()
        self._expect("in")
        branches: list[tuple[tuple[Word, ...], Block]] = []
        self._skip_newlines()
        while self.token is not None and self.token.bare != "esac":
            if self._is("("):
                self._advance()
            patterns = [self._take_word()]
            while self._is("|"):
                self._advance()
                patterns.append(self._take_word())
            if not self._is(")"):
                raise self.build_error("a pattern of case without )")
            self._advance()
            branches.append((tuple(patterns), self.read_block()))
            if self._is(";;"):
                self._advance()
            self._skip_newlines()
        self._expect("esac")
        return Case(line=line, subject=subject, branches=tuple(branches))

    def _read_group(self, line: int) -> Group:
        self._advance()
        body = self.read_block()
        self._expect("}")
        return Group(line=line, body=body)

    def _read_simple(self, line: int) -> Command:
        assignments: list[Assignment] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        while self.token is not None:
            if self.token.operator in _REDIRECTS and not _is_open_test(words):
                operator = self.token.operator
                self._advance()
                redirects.append(Redirect(operator=operator, target=self._take_word()))
            elif self._is("(") and len(words) == 1 and not assignments:
                return self._read_function(line, words[0])
            elif self.token.operator and _is_open_test(words):
                # Inside [[ ]] these are operators of the test.
                words.append((Part(kind="text", text=self.token.operator, quoted=False),))
                self._advance()
            elif self.token.operator:
                break
            elif self.token.attached and self.token.bare.isdecimal():
                self._advance()  # the file descriptor of a redirection
            elif (not words or _get_bare(words[0]) in _DECLARING) and (found := _split_assignment(self.token.word)):
                self._advance()
                assignments.append(self._finish_assignment(found[0], found[2], appends=found[1]))
            else:
                words.append(self.token.word)
                self._advance()
        if not (assignments or words or redirects):
            raise self.build_error(f"'{self.show()}' where a command is expected")
        return SimpleCommand(line=line, assignments=tuple(assignments), words=tuple(words), redirects=tuple(redirects))

    def _finish_assignment(self, name: str, value: Word, *, appends: bool) -> Assignment:
        if value or not self._is("("):
            return Assignment(name=name, values=(value,), appends=appends)
        self._advance()
        values: list[Word] = []
        while not self._is(")"):
            if self._is("\n"):
                self._advance()
            else:
                values.append(self._take_word())
        self._advance()
        return Assignment(name=name, values=tuple(values), is_array=True, appends=appends)

    def _read_function(self, line: int, name: Word) -> Function:
        self._advance()
        if not self._is(")"):
            raise self.build_error("a ( in a command")
        self._advance()
        self._skip_newlines()
        if self.token is None or self.token.bare != "{":
            raise self.build_error("a function without { }")
        return Function(line=line, name=_get_bare(name), body=self._read_group(line).body)

    def _is(self, *operators: str) -> bool:
        return self.token is not None and self.token.operator in operators

    def _skip_newlines(self) -> None:
        while self._is("\n"):
            self._advance()

    def _expect(self, word: str) -> None:
        if self.token is None or self.token.bare != word:
            raise self.build_error(f"'{self.show()}' where '{word}' is expected")
        self._advance()

    def _take_bare(self) -> str:
        word = self.token.bare if self.token else ""
        if not word:
            raise self.build_error(f"'{self.show()}' where a name is expected")
        self._advance()
        return word

    def _take_word(self) -> Word:
        if self.token is None or self.token.operator:
            raise self.build_error(f"'{self.show()}' where a word is expected")
        word = self.token.word
        self._advance()
        return word

    def _advance(self) -> None:
        self.token = next(self._tokens, None)
        if self.token is not None:
            self._line = self.token.line + self._offset


def _get_bare(word: Word) -> str:
    return Token(line=0, word=word).bare


def _is_open_test(words: list[Word]) -> bool:
    return bool(words) and _get_bare(words[0]) == "[[" and _get_bare(words[-1]) != "]]"


def _split_assignment(word: Word) -> tuple[str, bool, Word] | None:
    """The name, whether it appends, and the value of a word like `name=value`."""
    first = word[0]
    match = _ASSIGNMENT.fullmatch(first.text) if first.kind == "text" and not first.quoted else None
    if not match:
        return None
    value = (Part(kind="text", text=match[3], quoted=False),) if match[3] else ()
    return match[1], bool(match[2]), (*value, *word[1:])
