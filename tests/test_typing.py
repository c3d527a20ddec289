"""What a type checker says of programs that use ringcomm."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# A comment says how mypy goes on, where it has something to say.
PROGRAM = """
from datetime import timedelta

import torch
from torch._C._distributed_c10d import HashStore

import ringcomm

ringcomm.init(timedelta(seconds=20), algorithm={"all_reduce": "ring"})
tensor = torch.ones(3)
ringcomm.all_reduce(tensor, ringcomm.ReduceOp.AVG)
ringcomm.all_reduce(tensor, async_op=True).wait()
ringcomm.broadcast(tensor, src=0)
group = ringcomm.new_group([0, 1], pg_options=ringcomm.Options(ranks_per_host=[1, 1]))
ringcomm.all_gather([tensor], tensor, group=group)
plans = ringcomm.plan.all_reduce("ring", world_size=4)
plans.verify()
chunk: int = plans[2].steps[0].sends[0].first_chunk
seconds: float = plans.simulate(2**20, ringcomm.plan.Network(ringcomm.plan.LINKS["ndr"])).seconds
ranks: list[int] = [rank.global_rank for one in ringcomm.status() for rank in one.ranks]
version: str = ringcomm.__version__
ring = ringcomm.ProcessGroupRing(HashStore(), 0, 1)
rank: int = ring.rank()

ringcomm.init(20)  # error: Argument 1 to "init" has incompatible type "int"
ringcomm.all_reduce([tensor])  # error: No overload variant of "all_reduce" matches
ringcomm.allreduce(tensor)  # error: Module has no attribute "allreduce"
plans.world_sizes  # error: "Plans" has no attribute "world_sizes"
"""


def test_a_program_of_a_user(tmp_path: Path) -> None:
    """Elsewhere, so that mypy has to find the installed package; in the project's cache, which is
    warm where mypy has checked the project."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--hide-error-codes", str(program)]
    command += [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
    ]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert not result.stderr
    said = re.findall(r"program.py:(\d+): (error: .*)", result.stdout)
    expected = [
        (str(number), line.split("  # ")[1])
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "  # error" in line
    ]
    assert len(expected) == 4
    assert len(said) == len(expected), result.stdout
    for (line, text), (expected_line, begin) in zip(said, expected, strict=True):
        assert line == expected_line and text.startswith(begin), result.stdout
