"""How a program for the command line refuses, fails, is interrupted, and writes: the same for all.

The commands of `python -m ringcomm` and the benchmarks share it. It needs no torch.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import difflib
import io
import itertools
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

# Exit codes, as shells and argparse have them.
FAILED, WRONG_USAGE, INTERRUPTED, NO_READER = 1, 2, 130, 141

_NEAR = 0.6  # as difflib measures likeness
# What terminals without Unicode are sent instead.
_ASCII = {
    **{"µ": "u", "→": "->", "←": "<-", "≥": ">=", "≤": "<=", "²": "^2", "…": "...", "–": "-"},
    **{"█": "#", "•": "*", "✓": "ok", "─": "-", "━": "=", "│": "|", "╸": "-", "╺": "-"},
}


class UsageError(ValueError):
    """The arguments do not fit together, or not this machine; the text says how."""


class FailedError(RuntimeError):
    """The program was called rightly and cannot go on; the text says why."""


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """What raises ValueError in this block has been given wrong arguments.

    Raises:
        UsageError: in place of the ValueError, with its text.
    """
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def nearest(word: str, known: Iterable[str], likeness: float = _NEAR) -> str | None:
    """Which of the known words is probably meant, if one is near."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), by_lower, 1, likeness)
    return by_lower[near[0]] if near else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The end of an error message about a word that is none of the known ones."""
    near = nearest(word, known) if isinstance(word, str) else None
    return f"; did you mean {near!r}?" if near else ""


class Parser(argparse.ArgumentParser):
    """Names what is probably meant by a misspelt option or choice.

    The program that makes one can print anything, as `write_anything` has it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.suggest_on_error = False  # argparse's own from Python 3.14 on, which knows no options
        write_anything()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse has it. Unknown options are found before what follows them is looked at."""
        words = sys.argv[1:] if args is None else list(args)
        for word in itertools.takewhile(lambda word: word != "--", words):
            self._check_option(word)
        return super().parse_known_args(words, namespace)

    def _check_option(self, word: str) -> None:
        option = word.partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        if option.startswith("--") and not any(name.startswith(option) for name in known):
            self.error(f"unrecognized arguments: {word}{did_you_mean(option, self._shown())}")

    def _shown(self) -> list[str]:
        """The options that --help names."""
        shown = (action for action in self._actions if action.help is not argparse.SUPPRESS)
        return [name for action in shown for name in action.option_strings]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(value, map(str, action.choices or ()))
            raise


def run(parser: argparse.ArgumentParser, program: Callable[[], int]) -> int:
    """Returns the exit code of a program: its own, or what its end by an error means.

    Raises:
        SystemExit: it was used wrongly; the code is 2.
    """
    try:
        code = program()
        sys.stdout.flush()  # else a pipe without a reader is noticed when Python ends
        return code
    except BrokenPipeError:
        if not _has_lost_its_reader(sys.stdout):
            raise
        return NO_READER
    except UsageError as error:
        parser.error(str(error))
    except FailedError as error:
        if _has_lost_its_reader(sys.stdout):  # the ranks that it started write to the same pipe
            return NO_READER
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        exec("")  # else Python dies of the signal in the end, if an exec of a text was interrupted
        return INTERRUPTED


def _has_lost_its_reader(stream: IO[str]) -> bool:
    """Whether the stream is a pipe whose reader has gone; then it is silent from here on."""
    try:
        descriptor = stream.fileno()
    except OSError:  # a test's, which has no descriptor
        return False
    pipe = select.poll()
    pipe.register(descriptor, 0)
    if not any(events & select.POLLERR for _, events in pipe.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return True


def write_anything() -> None:
    """Lets this process print what its terminal has no characters for, in ASCII.

    They are signs of this library's own, and names of hosts, files and groups, which need not have
    an encoding at all.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_in_ascii.__qualname__)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """For codecs: what stands for characters that an encoding does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_ASCII.get(each) or _escaped(each) for each in characters), error.end


def _escaped(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode()


codecs.register_error(_in_ascii.__qualname__, _in_ascii)
