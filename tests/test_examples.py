"""The examples: each asserts what it shows, so that running it is the test."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from pathlib import Path

import launch
import pytest
from programs import python
from ranks import Rank, on_processes

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

# By name: something that every run prints, on 4 ranks (8 for the last).
PRINTED = {
    "collective_operations": "rank 3: [3.0, 4.0, 5.0, 6.0] -> [18.0]",
    "playbook_collectives": "rank 3: [0.0, 0.0, 0.0] -> [1.0, 2.0, 3.0]",
    "point_to_point": "rank 3: sent 3, received 2",
    "subgroups": "rank 3: 3 -> 5 in its half -> 5",
    "process_info": "computes on cpu!!!",
    "softmax": "its part of 1 is",
    "own_all_reduce": "rank 3: 4 -> 10",
    "data_parallel": "3 all-reduces per step, for 6 gradients",
    "fsdp": "rank 3: keeps 100608 of 402432 bytes",
    "tensor_parallel": "rank 3: embedding (12, 8), up (8, 8), down (8, 8)",
    "any_number_of_ranks": "among 4 ranks 0 of 9610 differ from one rank's",
    "pipeline_parallel": "stage 3  ...0aa1bb2cc3dd4ee5ff6gg7hh......",
    "three_d_parallel": "rank 7: copy 1, stage 1",
}
ON_EIGHT_RANKS = "three_d_parallel"

# These start their ranks themselves, as some are to be killed.
OWN_RANKS = {
    "going_on": "rank 2: was rank 3, goes on from step 15",
    "replacement": "trained from step 15 to 40",
}


def run(rank: Rank, names: list[str]) -> list[str]:
    printed = []
    for name in names:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            importlib.import_module(name).main()
        printed.append(output.getvalue())
    return printed


def check(names: list[str], world_size: int, backend: str) -> None:
    by_rank_0, *others = on_processes(run, world_size, names, backend=backend, timeout=120)
    for name, text in zip(names, by_rank_0, strict=True):
        assert PRINTED[name] in text
    assert not any(text for texts in others for text in texts), "rank 0 speaks for all"


def test_every_example_is_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PRINTED, *OWN_RANKS, "launch"}
    learn = (EXAMPLES / "README.md").read_text()
    assert all(f"({name}.py)" in learn for name in (*PRINTED, *OWN_RANKS))


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_RANKS)
def test_ranks_that_are_killed(name: str) -> None:
    result = python(str(EXAMPLES / f"{name}.py"))
    assert result.returncode == 0, result.stderr
    assert OWN_RANKS[name] in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_on_four_ranks(backend: str) -> None:
    check([name for name in PRINTED if name != ON_EIGHT_RANKS], 4, backend)


@pytest.mark.slow
def test_on_eight_ranks() -> None:
    check([ON_EIGHT_RANKS], 8, "ring")


@pytest.mark.slow
def test_as_a_user_starts_them() -> None:
    result = python(str(EXAMPLES / "collective_operations.py"), "--nproc", "2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("the same bits") == 2 and not result.stderr

    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    result = python(*torchrun, str(EXAMPLES / "softmax.py"), "--backend", "gloo")
    assert result.returncode == 0, result.stderr
    assert "rank 1: [" in result.stdout


@pytest.mark.slow
def test_an_example_that_fails(tmp_path: Path) -> None:
    """One rank is wrong: the program says so, and no rank is left waiting."""
    program = tmp_path / "wrong.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import torch.distributed as dist\n"
        "from launch import launch\n"
        "def main():\n"
        "    assert dist.get_rank() != 1, 'this is wrong'\n"
        "launch(main)\n"
    )
    result = python(str(program), "--nproc", "2")
    assert result.returncode == 1
    # The other one notices it at once, so that either may end first.
    assert "this is wrong" in result.stderr
    assert re.search(r"rank [01] failed with exit code 1", result.stderr)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nproc", "3"], "needs 4 ranks or more, got 3"),
        (["--nproc", "-1"], "needs 4 ranks or more, got -1"),
        (["--backend", "mpi"], "invalid choice"),
        (["--backend", "nccl", "--nproc", "999"], "nccl needs a GPU for each of the 999 ranks"),
    ],
)
def test_refusals(
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["example.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        launch.launch(lambda: None, at_least=4)
    assert ended.value.code == 2 and words in capsys.readouterr().err
