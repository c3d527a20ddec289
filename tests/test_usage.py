"""How commands and benchmarks refuse what they are given, and print where there is no Unicode."""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT, python

from ringcomm.cli import main
from ringcomm.usage import FailedError, Parser, UsageError, nearest, run, write_anything

# What is typed, and what is meant.
MISSPELT = {
    "dmeo": "demo",
    "bench --nprco 3": "--nproc",
    "bench --itres=3": "--iters",
    "bench alreduce": "all_reduce",
    "bench -d flaot": "float",
    "bench -o smu": "sum",
    "bench --backends ring,golo": "gloo",
    "bench --algorithms rign": "ring",
    "bench --device cud": "cuda",
    "tune brodcast": "broadcast",
    "tune --outptu x": "--output",
    "explain all_redcue": "all_reduce",
    "explain --algorithm Ring": "ring",
    "explain --beside dirct": "direct",
    "explain --link nvlnk4": "nvlink4",
    "simulate --algorithm ring,double_treee": "double_tree",
    "simulate --across nrd": "ndr",
    "cost --model lama-3.1-8b": "llama-3.1-8b",
    "cost --machine h100_nvlink": "h100-nvlink",
    "trace --algorithm recursive_doublign": "recursive_doubling",
    "status --wacth": "--watch",
    "doctor --reprot": "--report",
}


@pytest.mark.parametrize("typed", MISSPELT)
def test_the_nearest_right_word_is_named(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 2
    assert f"did you mean '{MISSPELT[typed]}'?" in capsys.readouterr().err


def test_what_is_near() -> None:
    known = ("ring", "bidirectional_ring", "direct")
    assert nearest("RIGN", known) == "ring"
    assert nearest("hypercube", known) is None


def test_hidden_options_are_taken_and_not_proposed(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser()
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    assert parser.parse_args(["--rows", "x"]).rows == parser.parse_args(["--ro=x"]).rows == "x"
    with pytest.raises(SystemExit):
        parser.parse_args(["--rwos", "x"])
    assert "did you mean" not in capsys.readouterr().err


def test_what_follows_two_dashes_is_no_option() -> None:
    parser = Parser()
    parser.add_argument("words", nargs="*")
    assert parser.parse_args(["--", "--so"]).words == ["--so"]


def test_the_end_of_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    def raising(error: BaseException) -> int:
        raise error

    parser = Parser(prog="cook")
    assert run(parser, lambda: 5) == 5
    assert run(parser, lambda: raising(FailedError("no fire"))) == 1
    assert capsys.readouterr().err == "cook: no fire\n"
    assert run(parser, lambda: raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "interrupted\n"
    with pytest.raises(SystemExit) as ended:
        run(parser, lambda: raising(UsageError("no pan")))
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == "cook: error: no pan"
    with pytest.raises(ValueError, match="a mistake"):  # of the program's own keeps its traceback
        run(parser, lambda: raising(ValueError("a mistake")))


@pytest.mark.parametrize("command", ["cost --json", "simulate --json", "status --watch 0.01"])
def test_a_reader_that_goes_ends_a_command(command: str) -> None:
    """As `head` goes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ringcomm", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (141, "")


def test_other_pipes_that_break_keep_their_traceback() -> None:
    def raising() -> int:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(Parser(), raising)


SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "benchmarks").rglob("*.py")
    if re.search(r"\bParser\(", path.read_text())
)


def test_benchmarks_share_the_parser() -> None:
    assert len(SCRIPTS) > 15


@pytest.mark.parametrize("script", SCRIPTS)
def test_benchmarks_refuse_alike(script: str) -> None:
    result = python(script, "--hepl", cwd=ROOT)
    assert result.returncode == 2, result.stderr
    assert result.stderr.endswith("unrecognized arguments: --hepl; did you mean '--help'?\n")


# ---- Terminals without Unicode ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", "3 µs → 4, ≥ 5 █ ☃"),
        ("latin-1", "3 µs -> 4, >= 5 # \\u2603"),
        ("ascii", "3 us -> 4, >= 5 # \\u2603"),
    ],
)
def test_signs_have_substitutes(encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, "strict"))
    write_anything()
    print("3 µs → 4, ≥ 5 █ ☃", end="", flush=True)
    assert written.getvalue().decode(encoding) == shown


def test_names_without_an_encoding_can_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "utf-8", "strict"))
    write_anything()
    print(b"host\xff".decode(errors="surrogateescape"), end="", flush=True)
    assert written.getvalue() == b"host\\udcff"


# Each command, short. Times have the sign µ, the demo has blocks, explain arrows, cost "≥".
SHORT = [
    "demo --nproc 2 --epochs 1",
    "bench -b 1K -e 1K -n 1 --csv out.csv",
    "tune reduce --world-sizes 2 -b 64K -e 64K -n 1 -o tuning.json",
    "explain",
    "explain --timeline",
    "explain --algorithm ring --beside direct",
    "cost --dp 8 --tp 2",
    "simulate --world-size 8 --nbytes 1K --across 14us:50GB/s:1us",
    "trace --nproc 2 --size 64K --iters 1",
    "status",
    "doctor",
]


@pytest.mark.parametrize("command", SHORT)
def test_no_command_needs_unicode(command: str, tmp_path: Path) -> None:
    """Nor do its ranks: a pipe that takes ASCII alone, in a locale that has nothing else."""
    ascii_only = {"PYTHONIOENCODING": "ascii:strict", "LC_ALL": "POSIX", "PYTHONUTF8": "0"}
    result = python("-m", "ringcomm", *command.split(), cwd=tmp_path, **ascii_only)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii() and "\\u" not in result.stdout
