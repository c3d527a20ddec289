"""What `python -m ringcomm tune` has measured: this machine's fastest algorithms, and its network.

It is a file of rules, for groups whose ranks share one host and which name no algorithm. It also
says what the network to other hosts is, by which groups that span hosts choose. The first rank of a
group reads it, and all ranks go by what that one has read. A file that was made on another machine,
or by a ringcomm that knew other algorithms, is not used.

It has what calls take by these rules, too, from which each rank on its own estimates times.
"""

from __future__ import annotations

import json
import math
import os
import stat
import uuid
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ringcomm._C.plan import Collective
from ringcomm.environment import MOST_RANKS, value_of
from ringcomm.host import machine
from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.plan.network import Link
from ringcomm.plan.plans import COLLECTIVES

FORMAT = 1
MOST_NBYTES = (1 << 64) - 1
MOST_FILE_NBYTES = 4 << 20  # what `tune` writes is far smaller


@dataclass(frozen=True)
class Rule:
    """Among so many ranks, calls of a collective of at most so many bytes go by this algorithm.

    The bytes are those of the larger of a rank's two buffers. If several rules apply, the one
    with the fewest bytes counts.
    """

    world_size: int
    collective: str
    most_nbytes: int
    algorithm: str


@dataclass(frozen=True)
class Time:
    """Among so many ranks, a call of a collective by torch.distributed took so long.

    The bytes are those of the larger of a rank's two buffers.
    """

    world_size: int
    collective: str
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Tuning:
    """What a file says, and for what it was measured.

    Attributes:
        machine: as `ringcomm.host.machine` names it.
        made: when and with what, for people: names and values.
        rules: for groups of any size.
        across: the network between hosts, as RINGCOMM_ACROSS has it; "" if it was not measured.
        times: what calls took by the rules.
    """

    machine: str
    made: dict[str, str]
    rules: tuple[Rule, ...]
    across: str = ""
    times: tuple[Time, ...] = ()

    def core_rules(self) -> list[tuple[int, Collective, str, int]]:
        """The rules as the core takes them."""
        return [
            (rule.world_size, COLLECTIVES[rule.collective], rule.algorithm, rule.most_nbytes)
            for rule in self.rules
        ]


def is_named() -> bool:
    """Whether the user has named a file, which then must be one."""
    return value_of("RINGCOMM_TUNING") not in ("", "off")


def path() -> Path | None:
    """The file: RINGCOMM_TUNING, or its place in the user's cache; None if `why_none` says why."""
    name = value_of("RINGCOMM_TUNING")
    if name == "off":
        return None
    if name:
        return Path(name)
    if cache_home := value_of("XDG_CACHE_HOME"):
        return Path(cache_home) / "ringcomm" / "tuning.json"
    try:
        return Path.home() / ".cache" / "ringcomm" / "tuning.json"
    except RuntimeError:
        return None


def why_none() -> str:
    """Why there is no `path`."""
    if value_of("RINGCOMM_TUNING") == "off":
        return "RINGCOMM_TUNING is off"
    return "this user has no home directory, and neither RINGCOMM_TUNING nor XDG_CACHE_HOME is set"


def write(file: Path, tuning: Tuning) -> None:
    """Replaces the file at once, so that no process reads half of it, on other hosts neither.

    Raises:
        OSError: it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(file)
    new.write_text(json.dumps({"format": FORMAT, **asdict(tuning)}, indent=1) + "\n")
    new.replace(file)


def prepare(file: Path) -> None:
    """Finds out before hours of measuring whether `write` will do. It makes the file's folder.

    Raises:
        OSError: no file can be written there.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(file)
    new.touch()
    new.unlink()


def _beside(file: Path) -> Path:
    """A name of its own in the same folder, for what is to take the file's place."""
    return file.with_name(f"{file.name}.{uuid.uuid4().hex}")


def read(file: Path) -> Tuning:
    """What the file says.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file, or names what this ringcomm does not have.
    """
    try:
        found = json.loads(_content(file))
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']}, and this ringcomm reads {FORMAT}")
        rules = tuple(_checked(Rule(**rule)) for rule in found["rules"])
        across = str(found.get("across", ""))
        if across:
            Link.parse(across)
        times = tuple(_checked_time(Time(**time)) for time in found.get("times", ()))
        return Tuning(str(found["machine"]), dict(found["made"]), rules, across, times)
    except RecursionError:
        raise ValueError(f"{file} is no tuning: it is nested too deeply") from None
    except KeyError as error:
        raise ValueError(f"{file} is no tuning: it has no {error}") from None
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is no tuning: {error}") from None


def _content(file: Path) -> str:
    """The text of the file, which must be a regular one: others have no end, or wait for a writer.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, too large, or no UTF-8.
    """
    with open(file, "rb", opener=_open_nonblocking) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError("it is no regular file")
        content = opened.read(MOST_FILE_NBYTES + 1)
    if len(content) > MOST_FILE_NBYTES:
        raise ValueError(f"it is larger than {MOST_FILE_NBYTES >> 20} MiB")
    return content.decode()


def _open_nonblocking(name: str, flags: int) -> int:
    """Opens a file without a wait for a writer, as a pipe has."""
    return os.open(name, flags | os.O_NONBLOCK)


def _checked(rule: Rule) -> Rule:
    if rule.algorithm not in ALGORITHMS.get(rule.collective, {}):
        raise ValueError(f"{rule.collective!r} has no algorithm {rule.algorithm!r}")
    if not (_is_in(rule.world_size, 1, MOST_RANKS) and _is_in(rule.most_nbytes, 0, MOST_NBYTES)):
        raise ValueError(f"{rule} is out of range")
    return rule


def _is_in(number: object, least: int, most: int) -> bool:
    return type(number) is int and least <= number <= most


def _checked_time(time: Time) -> Time:
    if time.collective not in COLLECTIVES:
        raise ValueError(f"there is no collective {time.collective!r}")
    is_time = math.isfinite(time.seconds) and time.seconds >= 0
    is_call = _is_in(time.world_size, 1, MOST_RANKS) and _is_in(time.nbytes, 0, MOST_NBYTES)
    if not (is_call and is_time):
        raise ValueError(f"{time} is out of range")
    return time


def rules() -> list[tuple[int, Collective, str, int]]:
    """What groups that are made now go by on one host; empty without a file that fits.

    Raises:
        OSError: RINGCOMM_TUNING names a file that cannot be read.
        ValueError: it is no tuning.
    """
    tuning = used()
    return tuning.core_rules() if tuning else []


def used_file() -> str:
    """The file that `rules` are from; "" without one that fits.

    Raises:
        OSError, ValueError: as `rules` does.
    """
    file = path()
    if file is None or not used():
        return ""
    return os.fsencode(file).decode(errors="replace")


def times() -> list[tuple[int, Collective, int, float]]:
    """By which groups that are made now estimate; empty without a file that fits.

    Raises:
        OSError, ValueError: as `rules` does.
    """
    tuning = used()
    return [
        (time.world_size, COLLECTIVES[time.collective], time.nbytes, time.seconds)
        for time in (tuning.times if tuning else ())
    ]


def across() -> str:
    """The network between hosts, as RINGCOMM_ACROSS has it; "" if no file that fits has it.

    Raises:
        OSError, ValueError: as `rules` does.
    """
    tuning = used()
    return tuning.across if tuning else ""


def used() -> Tuning | None:
    """What groups that are made now go by; None without a file that fits.

    Raises:
        OSError, ValueError: as `rules` does.
    """
    return _used(path(), is_named())


@cache  # as a process makes many groups
def _used(file: Path | None, is_named: bool) -> Tuning | None:
    if file is None:
        return None
    if not is_named:
        return state(file)[0]
    try:
        return read(file)
    except OSError as error:
        said = f"RINGCOMM_TUNING names a file that cannot be read: {error.strerror}"
        raise type(error)(error.errno, said, str(file)) from None
    except ValueError as error:
        raise ValueError(f"RINGCOMM_TUNING: {error}") from None


def state(file: Path) -> tuple[Tuning | None, str]:
    """What the file in the user's cache says, if it is used, and a line for people."""
    try:
        tuning = read(file)
    except (FileNotFoundError, NotADirectoryError):
        return None, "none: `python -m ringcomm tune` measures this machine"
    except (OSError, ValueError) as error:
        return None, f"not used: {error}"
    if tuning.machine != machine():
        return None, f"not used: {file} was made on another machine ({tuning.machine})"
    return tuning, describe(file, tuning)


def describe(file: Path, tuning: Tuning) -> str:
    """ "FILE of 2026-11-23, for 2 and 4 ranks and hosts 50us:1.25GB/s apart"."""
    sizes = sorted({rule.world_size for rule in tuning.rules})
    measured = [f"{_listed(sizes)} ranks"] if sizes or not tuning.across else []
    measured += [f"hosts {tuning.across} apart"] if tuning.across else []
    return f"{file} of {tuning.made.get('date', 'no date')}, for {' and '.join(measured)}"


def _listed(numbers: list[int]) -> str:
    texts: list[Any] = [str(number) for number in numbers]
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]])) or "no"
