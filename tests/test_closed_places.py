"""A job starts where optional paths are closed to its user, missing or no files."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from own_modules import own, own_path
from ranks import Rank, on_processes

import ringcomm
from ringcomm import _toolchain, host, launchers, links, tuning
from ringcomm.cli import doctor
from ringcomm.tuning import Rule, Tuning

NOBODY = 12345  # without an entry in /etc/passwd
NONE = "none: `python -m ringcomm tune` measures this machine"


def as_nobody() -> None:
    """From now on this process is another user's, if that can be."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def starts(rank: Rank, environment: dict[str, str | None], place: str) -> tuple[float, str]:
    """The sum of one rank, and what the doctor says of the tuning."""
    for name, value in {"RINGCOMM_TUNING": None, "XDG_CACHE_HOME": None, **environment}.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    sys.path.insert(0, place)
    as_nobody()
    tensor = torch.ones(1)
    ringcomm.init()
    ringcomm.all_reduce(tensor)
    problems: list[str] = []
    said = doctor._tuning(problems)
    assert not problems
    return tensor.item(), said


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A folder that only root may enter."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    return folder


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_a_folder_that_may_not_be_entered(closed: Path, variable: str) -> None:
    (tensor, said) = on_processes(starts, 1, {variable: str(closed)}, str(closed / "x"))[0]
    assert tensor == 1
    assert said.startswith("not used: [Errno 13] Permission denied: ") and str(closed) in said


def test_a_home_whose_name_is_too_long(closed: Path) -> None:
    home = "/" + "x" * 300
    (tensor, said) = on_processes(starts, 1, {"HOME": home}, home)[0]
    assert tensor == 1 and "File name too long" in said


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become a user without a home")
def test_no_home(closed: Path) -> None:
    (tensor, said) = on_processes(starts, 1, {"HOME": None}, str(closed))[0]
    assert tensor == 1 and said.startswith("none: this user has no home directory")


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.touch()
    assert tuning.state(home / ".cache" / "ringcomm" / "tuning.json") == (None, NONE)


def test_entries_of_the_path_that_are_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    strange = ["x" * 300, Path("/nowhere"), None, b"/nowhere"]
    monkeypatch.setattr(sys, "path", [*strange, *sys.path])
    found = _toolchain.ucx_libraries(), _toolchain.find_ucx(), _toolchain.in_wheels("cu*/bin")
    monkeypatch.setattr(sys, "path", sys.path[len(strange) :])
    assert found == (
        _toolchain.ucx_libraries(),
        _toolchain.find_ucx(),
        _toolchain.in_wheels("cu*/bin"),
    )


def closed_to_nobody(rank: Rank, place: str) -> tuple[str, object, list[Path]]:
    sys.path[:] = [place]
    as_nobody()
    return _toolchain.ucx_libraries(), _toolchain.find_ucx(), _toolchain.in_wheels("cu*/bin")


def test_an_entry_of_the_path_that_may_not_be_entered(closed: Path) -> None:
    libraries, _, wheels = on_processes(closed_to_nobody, 1, str(closed / "x"))[0]
    assert (libraries, wheels) == ("", [])


# ---- Files that are no tunings ----------------------------------------------------------------


def deep(file: Path) -> None:
    file.write_text("[" * 200_000)


def fifo(file: Path) -> None:
    os.mkfifo(file)


def large(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(200_000_000)


def not_utf8(file: Path) -> None:
    file.write_bytes(b'{"format": 1, "machine": "caf\xe9"}')


def rules(file: Path, **change: object) -> None:
    rule = {
        "world_size": 2,
        "collective": "all_reduce",
        "most_nbytes": 1,
        "algorithm": "ring",
        **change,
    }
    file.write_text(json.dumps({"format": 1, "machine": "", "made": {}, "rules": [rule]}))


def times(file: Path, **change: object) -> None:
    time = {"world_size": 2, "collective": "reduce", "nbytes": 1, "seconds": 1, **change}
    content = {"format": 1, "machine": "", "made": {}, "rules": [], "times": [time]}
    file.write_text(json.dumps(content))


BAD = {
    "deep": (deep, "it is nested too deeply"),
    "fifo": (fifo, "it is no regular file"),
    "large": (large, "it is larger than 4 MiB"),
    "not UTF-8": (not_utf8, "'utf-8' codec can't decode byte 0xe9"),
    "no rules": (lambda file: file.write_text('{"format": 1}'), "it has no 'rules'"),
    "float": (lambda file: rules(file, world_size=2.5), "out of range"),
    "switch": (lambda file: rules(file, world_size=True), "out of range"),
    "many ranks": (lambda file: rules(file, world_size=1 << 31), "out of range"),
    "long": (lambda file: times(file, seconds=10**400), "too large"),
    "parts": (lambda file: times(file, nbytes=0.5), "out of range"),
}


@pytest.mark.parametrize("kind", BAD)
def test_files_that_are_no_tunings(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passed over in the user's cache; an error that names the file where the user names it."""
    make, why = BAD[kind]
    file = tmp_path / "ringcomm" / "tuning.json"
    file.parent.mkdir()
    make(file)
    monkeypatch.delenv("RINGCOMM_TUNING", raising=False)
    monkeypatch.delenv("RINGCOMM_ACROSS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (tuning.rules(), tuning.times()) == ([], [])
    assert links.across() == links.Link.parse(links.ETHERNET)
    problems: list[str] = []
    said = doctor._tuning(problems)
    assert said.startswith(f"not used: {file} is no tuning: ") and why in said and not problems
    monkeypatch.setenv("RINGCOMM_TUNING", str(file))
    with pytest.raises(ValueError, match=f"RINGCOMM_TUNING: {file} is no tuning: ") as raised:
        tuning.rules()
    assert why in str(raised.value)
    assert doctor._tuning(problems) == "none" and why in problems[0]


def test_a_named_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tuning.json"
    monkeypatch.setenv("RINGCOMM_TUNING", str(file))
    with pytest.raises(FileNotFoundError, match="RINGCOMM_TUNING names a file that cannot be"):
        tuning.rules()
    monkeypatch.setenv("RINGCOMM_TUNING", str(tmp_path / ("x" * 300)))
    with pytest.raises(OSError, match=r"cannot be read: File name too long: '.*xxx'"):
        tuning.rules()
    monkeypatch.setenv("RINGCOMM_TUNING", str(tmp_path))
    with pytest.raises(IsADirectoryError, match=f"cannot be read: Is a directory: '{tmp_path}'"):
        tuning.rules()
    said = tuning.state(tmp_path)[1]
    assert said == f"not used: [Errno 21] Is a directory: '{tmp_path}'"


def test_a_tuning_as_large_as_may_be(tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    tuning.write(file, Tuning("", {}, (Rule(2, "all_reduce", 1, "ring"),)))
    content = file.read_bytes()
    file.write_bytes(content.ljust(tuning.MOST_FILE_NBYTES))
    assert len(tuning.read(file).rules) == 1
    file.write_bytes(content.ljust(tuning.MOST_FILE_NBYTES + 1))
    with pytest.raises(ValueError, match="larger than 4 MiB"):
        tuning.read(file)


# ---- What the doctor looks at -----------------------------------------------------------------


def test_the_doctor_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    path = own(os.path, expanduser=lambda path: path)
    monkeypatch.setattr(doctor, "os", own(os, path=path))
    assert "a ~ b" in doctor._for_an_issue("a ~ b")


def test_a_proc_that_shows_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *arguments: object, **options: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.delenv("RINGCOMM_HOSTID", raising=False)
    for module in (host, doctor):
        monkeypatch.setattr(module, "Path", own_path(read_text=refuse))
    assert "one with all processes whose memory it sees" in host.guess()
    assert doctor._path_of("libnccl.so.2") == "from where is not known"


def test_a_launcher_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(launchers, "Path", own_path(read_bytes=refuse))
    assert launchers._parent_of_all(("PMI_RANK",)) is None


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(doctor, "tempfile", own(tempfile, TemporaryFile=refuse))
    with doctor._file_of_errors() as errors:
        errors.write(b"word")
        errors.seek(0)
        assert errors.read() == b"word"
