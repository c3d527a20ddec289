"""Environment variables: empty ones, numbers out of bounds, and misspelt names."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed import HashStore

from ringcomm import _C, backend, environment, flight, launchers, tuning
from ringcomm.bench import run as bench_rank
from ringcomm.cli import doctor
from ringcomm.launch import run_ranks
from ringcomm.options import Options, hosts

PAGE = Path(__file__).resolve().parents[1] / "docs" / "pages" / "reference" / "environment.md"


def documented() -> list[str]:
    """All variables in the first columns of the page's tables."""
    rows = re.findall(r"^\| (`.*?`) \|", PAGE.read_text(), re.M)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


class GroupOptions(NamedTuple):
    """What torch passes to a backend that it makes."""

    store: HashStore
    group_rank: int = 0
    group_size: int = 1
    timeout: timedelta = timedelta(seconds=1)
    group_id: str = "group"
    global_ranks_in_group: tuple[int, ...] = ()


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in documented():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What all that reads the environment makes of it."""
    calls: dict[str, Any] = {}
    with monkeypatch.context() as seen:
        for name in ("create_backend", "start_flight_recorder"):
            seen.setattr(_C, name, lambda *arguments, name=name: calls.__setitem__(name, arguments))
        seen.setattr(
            backend, "PrefixStore", lambda prefix, store: calls.__setitem__("prefix", prefix)
        )
        seen.setattr(backend, "link", lambda described: described)  # which can be compared
        seen.setattr(flight, "_notify_torch", lambda is_recorded_here: None)
        seen.setattr(torch.cuda, "device_count", lambda: 2)
        seen.setattr(torch.cuda, "set_device", lambda index: calls.__setitem__("device", index))
        seen.setattr(bench_rank, "device_type", lambda options: "cuda")
        bench_rank._device(None)  # type: ignore[arg-type]
        backend.create(GroupOptions(HashStore()), None)
    world = launchers.rendezvous(None)
    return {
        **calls,
        "tuning": tuning.path(),
        "launched": launchers.launched(),
        "world": (world.get("init_method"), world["rank"], world["world_size"]),
    }


@pytest.mark.parametrize("name", documented())
def test_an_empty_variable_is_as_one_that_is_not_set(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = found(monkeypatch)
    monkeypatch.setenv(name, "")
    assert found(monkeypatch) == without


def test_an_empty_address_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_PORT": "7"}.items():
        monkeypatch.setenv(name, value)
    without = launchers.rendezvous(None)
    assert without["init_method"] == "tcp://127.0.0.1:7"
    monkeypatch.setenv("MASTER_ADDR", "")
    assert launchers.rendezvous(None) == without


# ---- Numbers ----------------------------------------------------------------------------------

MANY = "9" * 5000  # digits, more than Python converts
RANKS = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("RINGCOMM_FLIGHT_RECORDS", "an integer from 0 to 1000000"),
        ("RINGCOMM_RANKS_PER_HOST", "one integer from 1 to 2147483647, or one for each host"),
        ("RINGCOMM_HOST_SILENCE", "seconds, from 1 to 86400"),
        ("LOCAL_RANK", "an integer from 0 to 2147483647"),
        ("SLURM_PROCID", "an integer from 0 to 1"),
        ("SLURM_STEP_NUM_TASKS", "an integer from 1 to 2147483647"),
        ("MASTER_PORT", "an integer from 1 to 65535"),
    ],
)
@pytest.mark.parametrize("value", ["1000000000000", MANY, "-1", "many", "\u00b2"])
def test_numbers_have_bounds(
    name: str, bounds: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each, number in RANKS.items():
        monkeypatch.setenv(each, number)
    monkeypatch.setenv(name, value)
    given = repr(value) if len(value) <= 100 else f"{value[:100]!r}..."
    with pytest.raises(ValueError, match=f"^{name} is {re.escape(given)}; it must be {bounds}"):
        found(monkeypatch)


@pytest.mark.parametrize(
    "value", [f"{MANY}us:1GB/s", f"1us:{MANY}GB/s", f"1us:1GB/s:{MANY}us", "1001000ms:1GB/s"]
)
def test_the_network_has_bounds(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_ACROSS", value)
    bounds = "at most 1000 s, and the bandwidth at most 1000000 GB/s"
    with pytest.raises(ValueError, match=f"RINGCOMM_ACROSS is '{value[:9]}.*{bounds}"):
        found(monkeypatch)


def test_hosts_of_many_ranks_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_RANKS_PER_HOST", "2147483647,1")
    assert hosts(Options(), [0, 2147483646, 2147483647]) == [0, 0, 1]


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_ranks_of_torchrun_are_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1", name: "two"}
    for each, value in ranks.items():
        monkeypatch.setenv(each, value)
    with pytest.raises(ValueError, match=f"{name} is 'two'; it must be an integer from"):
        launchers.rendezvous(None)


# ---- Misspelt names ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("RINGCOMM_ALGORITM", "RINGCOMM_ALGORITHM"),
        ("RINGCOMM_ALGO", "RINGCOMM_ALGORITHM"),
        ("RINGCOMM_HOST_ID", "RINGCOMM_HOSTID"),
        ("RINGCOMM_LINK", "RINGCOMM_LINKS"),
        ("RINGCOMM_SILENCE", "RINGCOMM_HOST_SILENCE"),
        ("RINGCOMM_DEBUG_LEVEL", "RINGCOMM_DEBUG"),
    ],
)
def test_a_misspelt_name_has_a_near_one(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    (said,) = environment.unknown()
    assert said == f"{name} is set, and ringcomm reads no such variable. Is {meant} meant?"
    problems: list[str] = []
    monkeypatch.setenv("RINGCOMM_LINKS", "gloo")
    monkeypatch.setenv("RINGCOMM_FLIGHT_STACKS", "")
    assert doctor._settings(problems) == "RINGCOMM_LINKS" and problems == [said]


def test_a_name_that_is_like_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_" + "Z" * 100_000, "1")
    (said,) = environment.unknown()
    assert "ZZZ... is set" in said[:150]
    assert said.endswith(f"It reads {', '.join(environment.NAMES)}")


def test_names_that_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    builds_and_tests = (
        *("RINGCOMM_BUILDS", "RINGCOMM_WITH_CUDA", "RINGCOMM_WITH_TESTS"),
        *("RINGCOMM_TORCH_SOURCES", "RINGCOMM_NCCL"),
        *("RINGCOMM_TEST_RANKS_PER_HOST", "RINGCOMM_TEST_CALLS", "RINGCOMM_REHEARSE"),
    )
    for name in (*environment.NAMES, *builds_and_tests):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("RINGCOMM_ALGORITM", "")
    monkeypatch.setenv("RINGCOMMON", "1")
    assert environment.unknown() == []
    for name in environment.NAMES:
        monkeypatch.delenv(name)
    assert doctor._settings([]) == "none in the environment"


WARNED = """
import warnings
import ringcomm
warnings.simplefilter("always")
ringcomm.init()
for _ in range(2):
    ringcomm.new_group()
ringcomm.barrier()
ringcomm.new_group([1])
"""


def test_rank_0_warns_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RINGCOMM_ALGORITM", "ring")
    with (tmp_path / "said").open("w+b") as said:
        run_ranks(["-c", WARNED], 2, timeout=60, stderr=said)
        said.seek(0)
        assert said.read().decode().count("Is RINGCOMM_ALGORITHM meant?") == 1
