"""Ranks whose shared memory is overwritten at random while they are at work end in time."""

from __future__ import annotations

import os
import re
import subprocess

import ahead
import pytest
import test_core_cpp

from faults.record import Record

PROGRAM = "address/test_damaged_memory"  # with ranks as threads, under AddressSanitizer
MORE = 120  # seconds for its last trial and its end on a busy host


@ahead.once
def failure_to_build() -> str:
    return test_core_cpp.ninja(PROGRAM)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # it may have to be built
@pytest.mark.ahead(failure_to_build)
def test_damaged_memory(record: Record) -> None:
    seconds = record.scale(5, 600)
    assert not (failure := failure_to_build()), failure
    ran = subprocess.run(
        [test_core_cpp.BUILD / PROGRAM, "random_damage"],
        env={**os.environ, "RINGCOMM_DAMAGE_SECONDS": str(seconds)},
        timeout=seconds + MORE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
    found = re.search(r"(\d+) trials, (\d+) of them called damage by its name", ran.stdout)
    assert found, ran.stdout
    record.write(seconds=seconds, trials=int(found[1]), called_damage_by_its_name=int(found[2]))
