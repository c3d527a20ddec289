"""Too little shared memory is an error on every rank that says so, at once."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from faults.crew import Crew, Mate, Meeting, meeting
from faults.full_memory import DONE, SMALL, make_a_group, reduce, seen_of

ROOT = Path(__file__).resolve().parents[2]
WORLD_SIZE = 3
AMPLE = 1 << 30
SOON = 60.0  # seconds on a busy host


def limit_files(nbytes: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, most))


def is_limited(mate: Mate, place: Meeting, nbytes: int, limited: list[int]) -> None:
    if mate.rank in limited:
        limit_files(nbytes)
    mate.say(seen_of(place.store(mate.world_size), mate.rank, mate.world_size))


def seen_with_a_limit(nbytes: int, limited: list[int]) -> list[str]:
    with (
        meeting(of_file=False) as place,  # a file might not grow, either
        Crew(is_limited, WORLD_SIZE, place, nbytes, limited) as crew,
    ):
        said = crew.hear_all(range(WORLD_SIZE), SOON)
        assert crew.ended() == [0] * WORLD_SIZE
    return [said[rank] for rank in range(WORLD_SIZE)]


@pytest.mark.parametrize(
    ("nbytes", "limited", "where"),
    [
        (1024, [0], "init_process_group"),
        (24576, [0, 1, 2], "a small sum"),
        (1 << 21, [0, 1, 2], "a large sum"),
    ],
)
def test_files_that_may_not_grow(nbytes: int, limited: list[int], where: str) -> None:
    seen = seen_with_a_limit(nbytes, limited)
    for text in seen:
        assert text.startswith(where), seen
        assert "File too large" in text and "needed" in text and "ulimit -f" in text, seen


def in_namespaces(directory: Path, nbytes: int) -> list[str]:
    """What ranks see that share a /dev/shm of this size, and no PIDs."""
    directory.mkdir()
    rank = f"unshare --pid --fork --mount-proc {sys.executable} -m faults.full_memory {directory}"
    ranks = "".join(f"{rank} {r} {WORLD_SIZE} & " for r in range(WORLD_SIZE))
    script = f"mount -t tmpfs -o size={nbytes} tmpfs /dev/shm || exit; {ranks} wait; ls /dev/shm"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    ran = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
        env=environment,
        timeout=SOON,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "", f"left in /dev/shm: {ran.stdout}\n{ran.stderr}"
    return [(directory / f"seen {r}").read_text() for r in range(WORLD_SIZE)]


def has_namespaces() -> bool:
    command = "unshare --mount --pid --fork mount -t tmpfs tmpfs /dev/shm"
    try:
        return subprocess.run(command.split(), capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not has_namespaces(), reason="no namespaces may be made here")
@pytest.mark.parametrize(
    ("nbytes", "where"),
    [(24576, "a small sum"), (1 << 20, "a large sum"), (AMPLE, DONE)],
)
def test_a_full_dev_shm(nbytes: int, where: str, tmp_path: Path) -> None:
    seen = in_namespaces(tmp_path / "job", nbytes)
    for text in seen:
        assert text.startswith(where), seen
        assert text == DONE or ("No space left" in text and "needed" in text), seen


def goes_on(mate: Mate, place: Meeting) -> None:
    make_a_group(place.store(mate.world_size), mate.rank, mate.world_size)
    limit_files(1 << 20)
    for _ in range(3):
        reduce(SMALL)
    mate.say("fits")


def test_what_fits_is_done() -> None:
    with meeting(of_file=False) as place, Crew(goes_on, WORLD_SIZE, place) as crew:
        assert set(crew.hear_all(range(WORLD_SIZE)).values()) == {"fits"}
        crew.ended()
