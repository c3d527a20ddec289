"""The flight record, as a user gets at it: what its files hold, and when there are any."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from flight_records import SHORT, init, init_recorded, record, wait_for
from ranks import Rank, on_processes

import ringcomm


def dumps(rank: Rank, path: Path) -> dict[str, Any]:
    init(rank)
    before = time.time_ns()
    dist.broadcast(torch.ones(2, 3, dtype=torch.float16), 0)
    written = ringcomm.dump(path)
    assert written == str(path)
    content = record(written)
    (entry,) = content["entries"]
    created, started, completed = (
        entry.pop(name)
        for name in (
            "time_created_ns",
            "time_discovered_started_ns",
            "time_discovered_completed_ns",
        )
    )
    assert before <= created <= started <= completed <= time.time_ns()
    assert entry.pop("duration_ms") == (completed - started) / 1e6
    return content


def test_what_a_file_holds(tmp_path: Path) -> None:
    (content,) = on_processes(dumps, 1, tmp_path / "a folder" / "mine")
    assert content == {
        "version": "2.10",
        "comm_lib_version": "ringcomm",
        "entries": [
            {
                "record_id": 0,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": 1,
                "p2p_seq_id": 0,
                "op_id": 0,
                "profiling_name": "nccl:broadcast",
                "input_sizes": [[2, 3]],
                "input_dtypes": ["Half"],
                "output_sizes": [[2, 3]],
                "output_dtypes": ["Half"],
                "state": "completed",
                "retired": True,
                "timeout_ms": 60000,
                "is_p2p": False,
                "frames": [],
            }
        ],
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0]"}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": "1",
                "last_started_collective": "1",
                "last_completed_collective": "1",
            }
        },
    }


def named_by_bytes(rank: Rank, folder: Path) -> None:
    """Names of files are bytes that need not be UTF-8."""
    init(rank)
    dist.barrier()
    for path in (folder / os.fsdecode(b"caf\xe9"), folder / "caf\xe9"):
        assert ringcomm.dump(path) == str(path)
        assert len(record(str(path))["entries"]) == 1
    prefix = os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(folder / os.fsdecode(b"\xff_"))
    assert ringcomm.dump() == f"{prefix}0"
    with pytest.raises(OSError, match=r"cannot write the flight record to .*\ufffd/x"):
        ringcomm.dump(folder / os.fsdecode(b"caf\xe9") / os.fsdecode(b"\xff") / "x")


def test_names_of_files_that_are_no_text(tmp_path: Path) -> None:
    on_processes(named_by_bytes, 1, tmp_path)


def many(rank: Rank, path: Path) -> list[int]:
    init(rank)
    tensor = torch.ones(1)
    for _ in range(1100):
        ringcomm.all_reduce(tensor)
        dist.all_reduce(tensor)
    return [entry["collective_seq_id"] for entry in record(ringcomm.dump(path))["entries"]]


def test_the_last_2000_operations_are_kept(tmp_path: Path) -> None:
    assert on_processes(many, 1, tmp_path / "record") == [list(range(201, 2201))]


def user_s_function(rank: Rank, path: Path) -> list[dict[str, Any]]:
    os.environ["RINGCOMM_FLIGHT_STACKS"] = "1"
    init(rank)
    ringcomm.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    return [entry["frames"] for entry in record(ringcomm.dump(path))["entries"]]


def test_stacks_on_request(tmp_path: Path) -> None:
    (stacks,) = on_processes(user_s_function, 1, tmp_path / "record")
    first_line = user_s_function.__code__.co_firstlineno
    for stack, line in zip(stacks, (3, 4), strict=True):
        frames = [frame for frame in stack if frame["filename"] == __file__]
        assert frames[0] == {
            "name": "user_s_function",
            "filename": __file__,
            "line": first_line + line,
        }
        assert stack.index(frames[0]) < len(stack) - 1


def fails(rank: Rank, home: Path, settings: dict[str, str]) -> str:
    os.environ.update(settings, HOME=str(home))
    rank.meet()
    init(rank, SHORT)
    dist.barrier()
    if rank.rank == 1:
        rank.store.wait(["raised"])
        return ""
    with pytest.raises(dist.DistBackendError) as raised:
        dist.all_reduce(torch.ones(3))
    if settings.get("RINGCOMM_FLIGHT_RECORDS") == "0":
        with pytest.raises(RuntimeError, match="RINGCOMM_FLIGHT_RECORDS is 0"):
            ringcomm.dump()
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    rank.store.set("raised", "1")
    return str(raised.value)


def test_a_failure_leaves_no_file_unless_that_is_asked_for(tmp_path: Path) -> None:
    assert "recorded" not in on_processes(fails, 2, tmp_path, {})[0]
    assert os.listdir(tmp_path) == []
    prefix = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "rank_")}
    on_processes(fails, 2, tmp_path, {**prefix, "RINGCOMM_FLIGHT_DUMP": "0"})
    nothing = {"RINGCOMM_FLIGHT_RECORDS": "0", "TORCH_FR_BUFFER_SIZE": "0"}  # else torch records
    on_processes(fails, 2, tmp_path, {**prefix, **nothing})
    assert os.listdir(tmp_path) == []
    error = on_processes(fails, 2, tmp_path, {"RINGCOMM_FLIGHT_DUMP": "1"})[0]
    path = tmp_path / ".cache" / "torch" / "comm_lib_trace_rank_0"
    assert f"recorded in {path}" in error
    assert record(path)["pg_status"]["0"]["last_completed_collective"] == "1"


def test_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    on_processes(refused, 1, tmp_path / "file" / "record")


def refused(rank: Rank, path: Path) -> None:
    with pytest.raises(RuntimeError, match="no group"):
        ringcomm.dump(path)
    init(rank)
    with pytest.raises(OSError, match=f"cannot write the flight record to {path}: "):
        ringcomm.dump(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("RINGCOMM_FLIGHT_RECORDS", "-1"), ("RINGCOMM_FLIGHT_STACKS", "perhaps")],
)
def test_settings_are_checked(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} is '{value}'"):
        ringcomm.flight.start()


def blocked(rank: Rank, folder: Path, direct: bool) -> str:
    """Rank 1 sits in an all-reduce that rank 0 joins once it has rank 1's record."""
    init_recorded(rank, folder)
    tensor = torch.ones(5)
    call = ringcomm.all_reduce if direct else dist.all_reduce
    call(tensor)
    if rank.rank == 1:
        rank.store.set("pid", str(os.getpid()))
    else:
        pid = int(rank.store.get("pid"))
        while True:
            os.kill(pid, signal.SIGUSR2)
            wait_for(folder / "rank_1")
            entries = record(folder / "rank_1")["entries"]
            if len(entries) == 2:
                break
    call(tensor)
    assert tensor.tolist() == [4.0] * 5
    return entries[1]["state"] if rank.rank == 0 else ""


@pytest.mark.parametrize("direct", [False, True])
def test_sigusr2_dumps_where_the_main_thread_is_blocked(tmp_path: Path, direct: bool) -> None:
    assert on_processes(blocked, 2, tmp_path, direct)[0] == "started"


def with_own_handler(rank: Rank, folder: Path) -> list[int]:
    received = []
    signal.signal(signal.SIGUSR2, lambda number, _: received.append(number))
    init_recorded(rank, folder)
    os.kill(os.getpid(), signal.SIGUSR2)
    dist.barrier()
    return received


def test_a_handler_of_sigusr2_that_is_there_stays(tmp_path: Path) -> None:
    assert on_processes(with_own_handler, 1, tmp_path) == [[signal.SIGUSR2]]
    assert os.listdir(tmp_path) == []
