"""What the README and the pages of the documentation show is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from complaints import SHOW_ALL, complaints
from documents import FOLDER, PAGES, ROOT, blocks, page

import ringcomm
from ringcomm.cli import main
from ringcomm.launch import run_ranks

# Their programs are run elsewhere.
ELSEWHERE = {
    FOLDER / "start.md": "test_docs.py",
    FOLDER / "howto/own_algorithm.md": "test_guide.py",
    FOLDER / "howto/slow.md": "test_stragglers.py",
    FOLDER / "howto/hosts.md": "hosts/test_ray.py",
    FOLDER / "howto/frameworks.md": "clients/test_frameworks.py",
}
PROGRAMS = [
    pytest.param(program, id=f"{path.relative_to(ROOT)}-{index}")
    for path in PAGES
    if path not in ELSEWHERE
    for index, program in enumerate(blocks(path.read_text(), "python"))
]


@pytest.mark.parametrize("text", PROGRAMS)
def test_programs(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each runs on two ranks, and nothing warns. Those that have a file's name say what they found.

    Some stand on the imports and the tensor of those before them.
    """
    is_whole = re.match(r"# \w+\.py", text)
    if "import torch\n" not in text:
        text = "import torch, ringcomm\nimport torch.distributed as dist\n" + text
        text = text.replace('("gloo")\n', '("gloo")\ntensor = torch.ones(2)\n')
    program = tmp_path / "program.py"
    program.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(*SHOW_ALL)
    # Else Python writes a line and its end apart, and those of the two ranks mix.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    errors = tmp_path / "stderr"
    try:
        with errors.open("wb") as stderr:
            run_ranks([str(program)], 2, timeout=120, stderr=stderr)
    finally:
        print(errors.read_text())
    assert complaints(errors.read_text()) == []
    if is_whole:
        assert sorted(re.findall(r"^rank (\d)", capfd.readouterr().out, re.M)) == ["0", "1"]


def test_programs_were_found() -> None:
    assert len(PROGRAMS) == 16


def test_plan_table() -> None:
    printed = str(ringcomm.plan.all_reduce("ring", world_size=4)).splitlines()
    plain = blocks(page("design/ring.md"), "")
    (shown,) = [block for block in plain if block.startswith("all_reduce (ring)")]
    lines = [line for line in shown.splitlines() if line.strip(" .")]
    assert len(lines) == 12
    for line in lines:
        assert line in printed


def test_the_build_and_the_quick_tests_come_first_and_say_how_long_they_take() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    said = r"about three minutes.* pip install -e \. .* a minute or two: .* pytest -m 'not slow' .*"
    assert re.search(said + r"`pytest` alone runs all tests, in about an hour\.", text)


def test_exported_names() -> None:
    text = page("use.md")
    rows = text[text.index("| name | for |") : text.index("A synchronous")]
    beyond = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|(.*?)\|", rows, re.M))))
    table = page("reference/names.md").split("## Left out")[0]
    torchs = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|(.*?)\|", table, re.M))))
    assert beyond | torchs | {"ReduceOp", "Work", "P2POp", "Straggler"} == set(ringcomm.__all__)
    assert not beyond & torchs


@pytest.mark.parametrize("command", ["simulate", "cost"])
def test_output_of_commands(command: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = page("howto/simulate.md")
    start = f"python -m ringcomm {command} "
    (shell,) = [block for block in blocks(text, "sh") if block.startswith(start)]
    assert main(shlex.split(shell.replace("\\\n", ""))[3:]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "\n".join(["```", *printed, "```"]) in text
