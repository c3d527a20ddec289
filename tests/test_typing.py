"""What type checkers say of programs that use ringcomm."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import ahead
import pytest
import torch

import ringcomm

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

pair = ringcomm.new_group([0, 1], timedelta(seconds=9), device_id=None, sort_ranks=False)
size: int = pair.size()
if pair != ringcomm.new_group(ranks=(0,), backend="gloo", use_local_synchronization=True):
    ringcomm.all_reduce(tensor, group=pair)
own, groups = ringcomm.new_subgroups(2, group=pair)
mine, groups = ringcomm.new_subgroups_by_enumeration([[0], [1]], pg_options=ringcomm.Options())
ringcomm.destroy_process_group(mine)
ringcomm.set_timeout(timedelta(seconds=9), own)
ringcomm.init_process_group(rank=0, world_size=1, store=HashStore())
names: list[str] = [ringcomm.get_backend(), ringcomm.get_backend_config(pair)]
numbers: list[int] = [ringcomm.get_group_rank(own, 0), *ringcomm.get_process_group_ranks(own)]
work = ringcomm.all_gather_single(tensor, tensor, async_op=ringcomm.is_initialized())
if work is not None:
    work.wait()
ringcomm.reduce_scatter_single(tensor, tensor, group=pair)
ringcomm.gather_single(tensor, None, group_dst=1, group=own)
ringcomm.all_reduce_coalesced([tensor], ringcomm.ReduceOp.MAX)
ringcomm.all_gather_coalesced([[tensor]], [tensor])
objects = ["a", "b"]
ringcomm.all_gather_object(objects, "c", group=own)
ringcomm.gather_object("c", objects, group_dst=0)
ringcomm.broadcast_object_list(objects, 0)
ringcomm.scatter_object_list(objects, [1, 2], 0)
ringcomm.send_object_list(objects, 1)
source: int = ringcomm.recv_object_list(objects, 0)

ringcomm.new_group("01")  # error: Argument 1 to "new_group" has incompatible type "str"
ringcomm.new_group([0], algorithms="ring")  # error: Unexpected keyword argument "algorithms"
pair.ranks()  # error: Item "ProcessGroup" of "ProcessGroup | Any" has no attribute "ranks"
ringcomm.set_timeout(9)  # error: Argument 1 to "set_timeout" has incompatible type "int"
ringcomm.init(20)  # error: Argument 1 to "init" has incompatible type "int"
ringcomm.all_reduce([tensor])  # error: No overload variant of "all_reduce" matches
ringcomm.allreduce(tensor)  # error: Module has no attribute "allreduce"
plans.world_sizes  # error: "Plans" has no attribute "world_sizes"
"""


EXPECTED = [
    (number, line.split("  # ")[1])
    for number, line in enumerate(PROGRAM.splitlines(), 1)
    if "  # error" in line
]


def output(*command: str) -> str:
    """A type checker's, for the program, written to a folder without ringcomm."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(PROGRAM)
        # In pyright's strict mode, a type that it cannot infer is an error, too.
        Path(folder, "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
        command = (sys.executable, "-m", *command)
        result = subprocess.run(
            command,
            cwd=folder,
            env=ahead.environment(),
            capture_output=True,
            text=True,
            timeout=900,
        )
    assert not result.stderr
    return result.stdout


@ahead.once
def said_by_mypy() -> str:
    """It uses the project's cache, which is warm if mypy has checked the project."""
    files = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
    ]
    return output("mypy", "--strict", "--hide-error-codes", *files, "program.py")


@ahead.once
def said_by_pyright() -> str:
    """basedpyright is pyright with node; the package named pyright downloads node when it runs."""
    pytest.importorskip("basedpyright", reason="pip install basedpyright")
    return output("basedpyright", "--outputjson", "--pythonpath", sys.executable)


@pytest.mark.timeout(900)
@pytest.mark.ahead(said_by_mypy)
def test_mypy_finds_the_errors_of_a_program_and_no_others() -> None:
    text = said_by_mypy()
    said = re.findall(r"program.py:(\d+): (error: .*)", text)
    assert len(EXPECTED) == 8
    assert len(said) == len(EXPECTED), text
    for (line, error), (expected_line, begin) in zip(said, EXPECTED, strict=True):
        assert int(line) == expected_line and error.startswith(begin), text


@pytest.mark.timeout(900)
@pytest.mark.ahead(said_by_pyright)
def test_pyright_finds_the_errors_of_a_program_and_no_others() -> None:
    found = json.loads(said_by_pyright())
    lines = {each["range"]["start"]["line"] + 1 for each in found["generalDiagnostics"]}
    assert lines == {line for line, _ in EXPECTED}, found["generalDiagnostics"]


# torch's own functions have their types from 2.14 on.
@pytest.mark.skipif(not hasattr(torch.distributed, "set_timeout"), reason="torch has no types")
def test_every_public_function_is_annotated() -> None:
    for name in ringcomm.__all__:
        function = getattr(ringcomm, name)
        if not inspect.isfunction(function):
            continue
        signature = inspect.signature(function)
        annotations = [each.annotation for each in signature.parameters.values()]
        assert inspect.Parameter.empty not in [*annotations, signature.return_annotation], name
