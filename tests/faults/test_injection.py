"""What raises has not happened: each allocation, thread and system call of the library fails once.

Afterwards a call was done, or all ranks know that it was not, and further calls are the same calls
on all ranks. `tests/cpp/test_fault_injection.cpp` does so with the core alone.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ringcomm
from faults.record import Record

HERE = Path(__file__).parent
LEAST = 10_000  # injections of the long form


# What takes a group and sends nothing among its ranks; the first two make and end groups.
SENDS_NOTHING = {"new_subgroups", "destroy_process_group", "set_timeout", "topology"}


def test_no_public_call_is_forgotten() -> None:
    text = (HERE / "injected.py").read_text()
    injected = {getattr(ringcomm, name) for name in re.findall(r"ringcomm\.(\w+)", text)}
    for name in set(ringcomm.__all__) - SENDS_NOTHING:
        call = getattr(ringcomm, name)
        takes_group = inspect.isfunction(call) and "group" in inspect.signature(call).parameters
        if takes_group and not name.startswith("get_"):
            assert call in injected, f"injected.py does not make {name} fail"


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "there is no C++ compiler, with which the library was built"
    library = tmp_path_factory.mktemp("injector") / "libinjector.so"
    command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(HERE / "injector.cpp"), "-ldl"], check=True)
    return library


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run(injector: Path, links: str | None = None, **options: object) -> dict[str, Any]:
    """What rank 0 has counted. `links`: between hosts, of which each rank plays one."""
    port = free_port()
    environment = {
        **os.environ,
        "LD_PRELOAD": str(injector),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",  # says where a rank crashed
    }
    hosts = [
        {"RINGCOMM_HOSTID": f"host{r}", "RINGCOMM_LINKS": links} if links else {} for r in (0, 1)
    ]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "injected.py"), str(rank), str(port), json.dumps(options)],
            env={**environment, **hosts[rank]},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        output = [rank.communicate(timeout=7200)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], output
    counted: dict[str, Any] = json.loads(output[0].splitlines()[-1])
    return counted


def check(record: Record, found: dict[str, Any], least: int) -> None:
    counted = found["counted"]
    record.write(
        injections=sum(counted.values()), further_calls_each=record.scale(5, 100), outcomes=counted
    )
    assert not found["faults"], "\n".join(map(str, found["faults"]))
    assert sum(counted.values()) >= least


@pytest.mark.timeout(7200)
def test_every_point_of_every_call(injector: Path, request: pytest.FixtureRequest) -> None:
    record = Record("injection", request.config.getoption("long"))
    found = run(
        injector,
        rounds=record.scale(1, 2),
        later=record.scale(5, 100),
        counts=[3, 30_000, 400_000] if record.long else [3, 30_000],
        names="",
        stride=record.scale(11, 1),
    )
    check(record, found, record.scale(500, LEAST))


@pytest.mark.timeout(7200)
def test_every_point_between_hosts(injector: Path, request: pytest.FixtureRequest) -> None:
    record = Record("injection_hosts", request.config.getoption("long"))
    found = run(
        injector,
        links="gloo",
        rounds=1,
        later=record.scale(5, 100),
        counts=[3],
        names=record.scale("all_reduce of 3", ""),
        stride=11,
    )
    check(record, found, record.scale(20, 500))
