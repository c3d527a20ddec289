"""Lets a fork of this process become another program, with what this one has imported.

To import torch takes a core seconds, to fork a process that has done so takes it milliseconds.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import IO, NoReturn, TextIO

import torch

from ringcomm import _C


def is_safe() -> bool:
    """Whether a fork of this process can do all that a new process could.

    It has none of its threads, and cannot use a GPU that this process has looked for.
    """
    return threading.active_count() == 1 and torch.cuda.device_count() == 0


class Fork:
    """A process that runs `python arguments`; has of subprocess.Popen's methods what is here."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes] | None
    ) -> None:
        gc.freeze()  # else collections in the fork copy what it shares with this process
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=_main, args=(list(arguments), dict(environment), stderr)
        )
        with warnings.catch_warnings():
            # Python warns of libraries' threads. They only wait for work, and OpenBLAS makes new
            # ones in a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        gc.unfreeze()  # else extension modules say at this process's end that objects have leaked

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode


def _main(arguments: list[str], environment: dict[str, str], stderr: IO[bytes] | None) -> None:
    if stderr is not None:
        os.dup2(stderr.fileno(), 2)
    become(arguments, environment)


def become(arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Goes on as `python arguments` would that is started with this environment.

    Only for a process that was just forked by one that has done no work: what that has registered
    for its own end is forgotten.

    Args:
        arguments: a script, `-m` and a module, or `-c` and a program, with its arguments.

    Raises:
        SystemExit: at the program's end, with its exit code.
    """
    sys.stdout, sys.stderr = _writing(1, environment), _writing(2, environment)
    atexit._clear()
    atexit.register(_C.close_all)  # which `import ringcomm` has registered
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    if threads := environment.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    try:
        _run(arguments, environment.get("PYTHONPATH", ""))
        code = 0
    except SystemExit as error:
        code = _code_of(error)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.exit(code)


def _writing(descriptor: int, environment: Mapping[str, str]) -> TextIO:
    """Where the interpreter writes to by default, whatever has taken its place since."""
    is_error = descriptor == 2
    at_once = is_error or os.isatty(descriptor) or bool(environment.get("PYTHONUNBUFFERED"))
    encoding, _, errors = environment.get("PYTHONIOENCODING", "").partition(":")
    return open(
        descriptor,
        "w",
        1 if at_once else -1,
        encoding=encoding or None,
        errors="backslashreplace" if is_error else errors or None,
        closefd=False,
    )


def _run(arguments: Sequence[str], python_path: str) -> None:
    first, *rest = arguments
    sys.path[1:1] = filter(None, python_path.split(os.pathsep))
    if first == "-m":
        name, *rest = rest
        sys.argv, sys.path[0] = ["-m", *rest], os.getcwd()
        if not hasattr(sys.modules.get(name), "__path__"):
            sys.modules.pop(name, None)  # it is to be run, though it may have been imported
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif first == "-c":
        program, *rest = rest
        sys.argv, sys.path[0] = ["-c", *rest], ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), vars(main))
    else:
        sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
