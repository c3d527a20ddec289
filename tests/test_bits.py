"""`python -m ringcomm bits`: where two runs part, and what it says of records it cannot compare."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from documents import blocks, page
from flight_records import content, encoded, entry, record, write
from programs import python

from ringcomm.cli import main
from ringcomm.records import Call, Frame, read_run
from ringcomm.records.pickles import DamagedError, parsed
from ringcomm.records.words import line_of

# A small training. On the rank CHANGED, an input has another value in the step STEP.
TRAINING = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("ring")
rank = dist.get_rank()
weights = torch.zeros(1000)
for step in range(5):
    inputs = torch.sin(torch.arange(1000.0) * (rank + 1) + step)
    if (os.environ.get("CHANGED"), os.environ.get("STEP")) == (str(rank), str(step)):
        inputs[7] += 1e-3
    gradient = inputs - weights
    dist.all_reduce(gradient)
    weights += 0.1 * gradient
    norm = weights.norm()
    dist.all_reduce(norm, dist.ReduceOp.MAX)
    dist.all_gather_object([None, None], (os.getpid(), "x" * (os.getpid() % 9) * rank))
dist.barrier()
"""
LINE = TRAINING.splitlines().index("    dist.all_reduce(gradient)") + 1


def compared(capsys: pytest.CaptureFixture[str], *folders: Path) -> tuple[int, str]:
    """The exit code and what is printed, of which no line is too long."""
    try:
        code = main(["bits", *map(str, folders)])
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        code = ended.code
    captured = capsys.readouterr()
    assert not [line for line in captured.out.splitlines() if len(line) > 80]
    return code, captured.out or captured.err


def train(folder: Path, **changed: str) -> Path:
    folder.mkdir()
    script = folder.parent / "train.py"
    script.write_text(TRAINING)
    result = python(
        "-c",
        f"from ringcomm.launch import run_ranks; run_ranks(['{script}'], 2)",
        RINGCOMM_FLIGHT_DIGESTS="1",
        TORCH_FR_DUMP_TEMP_FILE=f"{folder}/rank_",
        **changed,
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs that are the same, and one that is not from the third step on."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "run_a": train(folder / "run_a"),
        "same": train(folder / "same"),
        "run_b": train(folder / "run_b", CHANGED="1", STEP="2"),
    }


def test_runs_that_are_the_same(capsys: pytest.CaptureFixture[str], runs: dict[str, Path]) -> None:
    code, said = compared(capsys, runs["run_a"], runs["same"])
    assert code == 0
    assert said == (
        "All bits are equal. Compared: 20 results of 2 ranks.\n"
        "Calls without a result to compare, such as barriers, sends and objects: 22.\n"
    )


def test_where_two_trainings_part(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, runs: dict[str, Path]
) -> None:
    """The page shows what the command prints."""
    monkeypatch.chdir(runs["run_a"].parent)
    code, said = compared(capsys, Path("run_a"), Path("run_b"))
    assert code == 1
    assert said.startswith(
        "The bits differ first in all_reduce(count=1000, dtype=float32) #9 of group 0\n"
        "  (default_pg), on ranks 0 and 1.\n"
    )
    assert f"Called at train.py:{LINE} in <module>" in said
    assert "Equal before it: 8 results of 2 ranks." in said
    entry = record(runs["run_b"] / "rank_1")["entries"][8]
    assert re.search(rf"^     1  [0-9a-f]{{16}}  {entry['digest']}$", said, re.M)
    (shown,) = [block for block in blocks(page("howto/reproducible.md"), "") if "The bits" in block]
    without = re.compile(r"\b[0-9a-f]{16}\b|train\.py:\d+")
    assert without.sub("", shown.strip()) == without.sub("", said.strip())


# ---- Records that no run has written ---------------------------------------------------------


def call(sequence: int, digest: str | None = "00", **fields: Any) -> dict[str, Any]:
    return entry(sequence, digest=digest, **fields)


class Records:
    """Writes the records of two runs and compares them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def __call__(
        self, a: list[list[dict[str, Any]]], b: list[list[dict[str, Any]]]
    ) -> tuple[int, str]:
        folders = write(self._folder / "a", *a), write(self._folder / "b", *b)
        code, said = compared(self._capsys, *folders)
        return code, " ".join(said.split())


@pytest.fixture
def compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Records:
    return Records(tmp_path, capsys)


def test_the_first_of_several(compare: Records) -> None:
    """Rank 1 differs earlier than rank 0, and alone, though its clock is late."""
    late = 1 << 40
    a = [[call(n) for n in (1, 2, 3)], [call(n, time_created_ns=late) for n in (1, 2, 3)]]
    b = [
        [call(1), call(2), call(3, "01")],
        [call(1), call(2, "01", time_created_ns=late), call(3, "01", time_created_ns=late)],
    ]
    code, said = compare(a, b)
    assert code == 1
    assert "all_reduce(count=3, dtype=float32) #2 of group 0 (default_pg), on rank 1." in said
    assert "1 00 01" in said
    assert "Called at /home/me/train.py:7 in step" in said
    assert "Equal before it: 2 results of 2 ranks." in said


def test_the_first_of_several_groups(compare: Records) -> None:
    """Each rank differs first in a group of its own; rank 2 knows which one came first."""
    tp, dp = {"process_group": ("1", "tp")}, {"process_group": ("2", "dp")}
    first, second = call(1, time_created_ns=9, **tp), call(1, record_id=1, **dp)
    a = [[first], [second], [first, second]]
    other = [call(1, "01", time_created_ns=9, **tp), call(1, "01", record_id=1, **dp)]
    code, said = compare(a, [[other[0]], [other[1]], other])
    assert code == 1 and "#1 of group 1 (tp), on ranks 0 and 2." in said


@pytest.mark.parametrize(
    ("fields", "made"),
    [
        ({"profiling_name": "nccl:reduce"}, "reduce(count=3, dtype=float32)"),
        ({"output_sizes": [[2, 2]]}, "all_reduce(count=4, dtype=float32)"),
        ({"output_dtypes": ["BFloat16"]}, "all_reduce(count=3, dtype=bfloat16)"),
    ],
)
def test_other_calls(compare: Records, fields: dict[str, Any], made: str) -> None:
    code, said = compare([[call(1), call(2)]], [[call(1), call(2, **fields)]])
    assert code == 1
    assert "The runs make other calls from #2 of group 0 (default_pg), on rank 0, on." in said
    assert "A: all_reduce(count=3, dtype=float32), at /home/me/train.py:7 in step" in said
    assert f"B: {made}, at /home/me/train.py:7 in step" in said


@pytest.mark.parametrize("shorter", ["A", "B"])
def test_a_run_that_ends_earlier(compare: Records, shorter: str) -> None:
    runs = [[[call(1), call(2)]], [[call(1)]]]
    code, said = compare(*(runs[::-1] if shorter == "A" else runs))
    assert code == 1
    assert "other calls from #2" in said and f"{shorter}: no call any more" in said
    assert "Equal before it: 1 results of 1 rank." in said


@pytest.mark.parametrize("without", ["A", "B"])
def test_a_call_of_another_group_in_between(compare: Records, without: str) -> None:
    extra = call(1, record_id=1, process_group=("1", "tp"))
    runs = [[[call(1), extra, call(2)]], [[call(1), call(2, "01")]]]
    code, said = compare(*(runs[::-1] if without == "A" else runs))
    assert code == 1
    assert "other calls from #1 of group 1 (tp), on rank 0, on." in said
    assert f"{without}: all_reduce(count=3, dtype=float32) #2 of group 0 (default_pg)" in said


def test_overwritten_records(compare: Records) -> None:
    a = [[call(n) for n in range(1, 11)]]
    code, said = compare(a, [[call(n) for n in range(6, 11)]])
    assert code == 0
    assert "All bits are equal. Compared: 5 results of 1 rank." in said
    assert "Earlier calls were overwritten: on rank 0 the comparison begins with " in said
    assert "#6 of group 0 (default_pg). RINGCOMM_FLIGHT_RECORDS=10 keeps all." in said


def test_records_without_a_call_in_common(compare: Records) -> None:
    code, said = compare([[call(1)]], [[call(9)]])
    assert code == 2 and "no call is in both records. RINGCOMM_FLIGHT_RECORDS=9 keeps all" in said


def test_digests_that_are_missing(compare: Records) -> None:
    without = call(1)
    del without["digest"]
    code, said = compare([[call(1)], [call(1)]], [[call(1)], [without]])
    assert code == 2 and "/b: there are no digests of rank 1; set RINGCOMM_FLIGHT_DIGESTS=1" in said


def test_results_on_gpus(compare: Records) -> None:
    code, said = compare([[call(1, None)]], [[call(1, None)]])
    assert code == 2 and "no result has a digest in both runs; results on GPUs have none" in said


def test_different_numbers_of_ranks(compare: Records) -> None:
    code, said = compare([[call(1)], [call(1)]], [[call(1)]])
    assert code == 2 and "different numbers of ranks: " in said
    assert "/a has records of ranks 0 and 1" in said and "/b of rank 0" in said


def test_a_rank_without_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [write(tmp_path / name, [call(1)], [call(1)]) for name in ("a", "b")]
    for folder in folders:
        (folder / "rank_1").unlink()
    code, said = compared(capsys, *folders)
    assert code == 0 and "There is no record of rank 1." in said


def test_what_is_printed_is_harmless(compare: Records) -> None:
    name = "\x1b]0;" + "x" * 10_000
    frame = {"name": name, "filename": name, "line": 1}
    fields = {"process_group": (name, name), "profiling_name": name, "frames": [frame]}
    code, said = compare([[call(1, name, **fields)]], [[call(1, "b" + name, **fields)]])
    assert code == 1 and "\x1b" not in said and len(said) < 3000


def frames(*filenames: str) -> Call:
    """A call with these frames, the innermost first."""
    made = tuple(Frame("f", filename, 1) for filename in filenames)
    return Call(0, "0", "", 1, "all_reduce", (1, ""), (1, ""), False, 0, None, None, made)


OWN = "/home/me/train.py"
TORCH = "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


@pytest.mark.parametrize(
    ("filenames", "expected"),
    [
        ((TORCH, OWN, "/home/me/main.py"), OWN),
        ((os.path.join(os.path.dirname(main.__code__.co_filename), "x.py"), OWN), OWN),
        ((TORCH, "/opt/lib/python3.11/site-packages/trainer/loop.py", OWN), OWN),
        ((TORCH, "/opt/lib/python3.11/contextlib.py", OWN, "<frozen runpy>"), OWN),
        ((TORCH, "/x/site-packages/trainer/loop.py"), "/x/site-packages/trainer/loop.py"),
        ((TORCH,), TORCH),
        (("<string>",), "<string>"),
    ],
)
def test_the_line_is_the_innermost_of_the_user(filenames: tuple[str, ...], expected: str) -> None:
    assert line_of(frames(*filenames)) == f"at {expected}:1 in f"
    assert line_of(frames()) == "at a line that was not recorded"


# ---- Files that are no records -----------------------------------------------------------------


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os._exit, (99,))


def bytes_of(value: Any) -> bytes:
    return b"\x80\x02" + encoded(value) + b"."


WHOLE = bytes_of(content([call(1)]))


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"no pickle",
        WHOLE[:-1],
        WHOLE[: len(WHOLE) // 2],
        pickle.dumps(Harmful(), protocol=2),
        pickle.dumps({"entries": []}),
        bytes_of([]),
        bytes_of({"entries": []}),
        bytes_of({"entries": {}, "pg_config": {}}),
        bytes_of({"entries": [1], "pg_config": {}}),
        bytes_of(content([call(1, record_id="0")])),
        bytes_of(content([call(1, process_group=["0", "x"])])),
        bytes_of(content([call(1, process_group=(0, "x"))])),
        bytes_of(content([call(1, output_sizes=[[2] * 65])])),
        bytes_of(content([call(1, output_sizes=[["2"]])])),
        bytes_of(content([call(1, digest=5)])),
        bytes_of(content([call(1, frames=[{}])])),
        b"\x80\x02X\xff\xff\xff\xff.",
        b"\x80\x02X\x01\x00\x00\x00\xff.",
        b"\x80\x02" + b"]" * 100_000 + b".",
        b"\x80\x02e.",
        b"\x80\x02(u.",
        b"\x80\x02}(Nu.",
        b"\x80\x02}(]Nu.",
        b"\x80\x02}(N" + b"N\x86" * 1_000_000 + b"Nu.",
    ],
)
def test_damaged_and_hostile_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: bytes
) -> None:
    (tmp_path / "rank_0").write_bytes(damaged)
    code, said = compared(capsys, tmp_path, tmp_path)
    assert code == 2
    assert "rank_0 is no flight record of ringcomm's, or damaged: " in said
    assert "Traceback" not in said


def test_the_reader_knows_what_the_writer_writes(runs: dict[str, Path]) -> None:
    for path in runs["run_a"].iterdir():
        assert parsed(path.read_bytes()) == record(path)
    for damaged in range(0, 3000, 7):
        whole = bytearray((runs["run_a"] / "rank_0").read_bytes())
        whole[damaged] ^= 0x41
        try:
            parsed(bytes(whole))
        except DamagedError as error:
            assert str(error)


def test_stacks_that_begin_alike() -> None:
    """The reader remembers stacks, by the text before them, which may be another's, too."""
    frame = {"name": "frames", "filename": "frames", "line": 1}
    calls = [
        call(n + 1, profiling_name="frames", frames=[frame] * length)
        for n, length in enumerate((0, 2, 1, 2, 0, 3, 1))
    ]
    calls += [call(8, frames=[[n], [[n, n]]]) for n in (0, 1, 0)]
    whole = content([*calls, *calls[::-1]])
    assert parsed(bytes_of(whole)) == whole


def test_folders_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(folder: Path) -> str:
        code, said = compared(capsys, folder, folder)
        assert code == 2 and "Traceback" not in said
        return said

    assert "nowhere cannot be read: No such file or directory" in fails(tmp_path / "nowhere")
    (tmp_path / "a_file").write_text("")
    assert "cannot be read: Not a directory" in fails(tmp_path / "a_file")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / ".flight-000001").write_text("")
    assert "holds no flight records" in fails(empty)
    (empty / "rank_0").mkdir()
    assert "cannot be read: Is a directory" in fails(empty) or "is no ordinary file" in fails(empty)
    (empty / "rank_0").rmdir()
    os.mkfifo(empty / "rank_0")
    assert "rank_0 is no ordinary file" in fails(empty)
    (empty / "other_0").write_text("")
    assert "files of several names, 'other_' and 'rank_'" in fails(empty)
    (empty / "other_0").unlink()
    (empty / "rank_00").write_text("")
    assert "several files of one rank" in fails(empty)


def test_a_run_is_read_by_its_names(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", *([call(1)] for _ in range(11)))
    (folder / "log.txt").write_text("")
    assert list(read_run(folder)) == list(range(11))
