"""Deciding about pasted texts, one after another, on one resident engine.

A terminal in its usual line mode hands over at most 4,095 bytes of a line (on Linux) and drops the rest; a text
with a line that long is refused, and belongs into a file.
"""

import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from jevify.cli.render import visible
from jevify.decide.questions import Question
from jevify.decide.request import Request
from jevify.decide.workflow import Workflow
from jevify.errors import InputError, JevifyError

RUN, QUIT = "/run", "/quit"
TERMINAL_LINE = 4095
"""Bytes of a line, without its end, that a terminal in line mode delivers."""

Decide = Callable[[Any, Workflow], Mapping[str, Any]]
Emit = Callable[[Mapping[str, Any]], None]


class _Left(Exception):
    """The user is done."""


def interact(decide: Decide, workflow: Workflow, emit: Emit, stream: BinaryIO) -> int:
    """Read texts and prompts from `stream` until /quit or its end, and `emit` a decision for each /run.

    Only lines that are exactly /run or /quit are commands. Nothing is kept from one request to the next: each
    begins with an empty text and the prompts of the workflow. What goes wrong in one request is told on stderr
    and the next one may follow. Returns 0 from a terminal; from a pipe, where nobody reads along, the exit code
    of the last failure.
    """
    session = _Session(decide, workflow, emit, _Lines(stream))
    with contextlib.suppress(_Left):
        session.loop()
    return 0 if session.lines.terminal else session.code


class _Lines:
    """Lines of a binary stream as text, without their ends."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.terminal = stream.isatty()

    def next(self) -> str:
        """The next line. Raises _Left at the end, InputError for one that is not UTF-8 or may have been cut."""
        raw = self._stream.readline()
        if not raw:
            raise _Left
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        if self.terminal and len(line) >= TERMINAL_LINE:
            raise InputError(
                f"a line has reached the {TERMINAL_LINE:,} bytes that a terminal delivers, and may have been "
                "cut: put the text into a file and use --context-file"
            )
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"a line is not UTF-8 text (byte {error.start} of it cannot be read)") from None


class _Session:
    def __init__(self, decide: Decide, workflow: Workflow, emit: Emit, lines: _Lines) -> None:
        self._decide, self._workflow, self._emit = decide, workflow, emit
        self.lines = lines
        self.code = 0

    def loop(self) -> None:
        self._hint(f"Paste a text, then {RUN} on a line of its own; {QUIT} leaves.")
        while True:
            try:
                self._emit(self._decide(*self._request().resolve(self._workflow)))
            except JevifyError as error:
                self._failed(str(error), error.exit_code)
            except (_Left, BrokenPipeError):
                raise
            except Exception as error:
                traceback.print_exc()
                self._failed(f"{type(error).__name__}: {error}", 1)

    def _request(self) -> Request:
        """Read a text and its prompts to the end, and raise InputError only then: a pipe goes on behind them."""
        problems: list[InputError] = []
        text = self._text(problems)
        if problems and self.lines.terminal:
            raise problems[0]
        if not text.strip() and not problems:
            raise InputError(f"there is no text yet: paste some, then {RUN}")
        prompts = self._prompts(problems)
        if problems:
            raise problems[0]
        return Request.parse({"context": text, "prompts": prompts or None}, "interactive")

    def _text(self, problems: list[InputError]) -> str:
        """The lines before /run; those that cannot be read go to `problems`."""
        lines: list[str] = []
        self._ask("> ")
        while True:
            try:
                line = self.lines.next()
            except InputError as error:
                problems.append(InputError(f"line {len(lines) + 1} of the text: {error}"))
                line = ""
            except _Left:
                if any(map(str.strip, lines)) or problems:
                    self._failed(f"the last text was not decided: it ends without {RUN}", 2)
                raise
            if line == QUIT:
                raise _Left
            if line == RUN:
                return "\n".join(lines)
            lines.append(line)

    def _prompts(self, problems: list[InputError]) -> dict[str, str]:
        """The prompts typed, by id; questions that keep theirs are left out."""
        prompts = {}
        for name, question in self._workflow.questions.items():
            prompt = self._prompt(name, question, problems)
            if prompt:
                prompts[name] = prompt
        return prompts

    def _prompt(self, name: str, question: Question, problems: list[InputError]) -> str:
        saved = "" if question.instructions is None else f" [{visible(question.instructions)}]"
        while True:
            self._ask(f"{visible(name)}{saved}: ")
            try:
                line = self.lines.next()
            except InputError as error:
                if not self.lines.terminal:
                    problems.append(InputError(f"the prompt of {visible(name)}: {error}"))
                    return ""
                self._tell(str(error))
                continue
            except _Left:
                self._failed("the last text was not decided: its prompts are missing", 2)
                raise
            if line == QUIT:
                raise _Left
            if line.strip():
                return line
            if not question.needs_prompt:
                return ""
            self._tell(f"question {visible(name)} has nothing saved: write what to ask")

    def _failed(self, message: str, code: int) -> None:
        self.code = code
        self._tell(message)

    def _tell(self, message: str) -> None:
        for line in message.split("\n"):
            print(f"jevify: {visible(line)}", file=sys.stderr, flush=True)

    def _hint(self, text: str) -> None:
        if self.lines.terminal:
            print(text, file=sys.stderr, flush=True)

    def _ask(self, text: str) -> None:
        if self.lines.terminal:
            print(text, end="", file=sys.stderr, flush=True)
