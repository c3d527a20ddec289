"""The options of a new group: the algorithms of its collectives, its hosts, its use of GPUs.

    >>> import torch.distributed as dist, ringcomm
    >>> dist.init_process_group("ring", pg_options=ringcomm.Options(algorithm="halving_doubling"))

`ringcomm.init` and `ringcomm.new_group` take the first two as arguments of their own, and the
environment has RINGCOMM_ALGORITHM and RINGCOMM_RANKS_PER_HOST for groups without options.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import ClassVar

from ringcomm._C import streams
from ringcomm._C.plan import Collective, Plan
from ringcomm.environment import MOST_RANKS, is_integer, one_of, shown, switch, value_of
from ringcomm.plan import registry
from ringcomm.plan.algorithms import ALGORITHMS, RanksPerHost, host_of
from ringcomm.plan.plans import COLLECTIVES, ROOTED
from ringcomm.usage import did_you_mean

# A barrier sends no data, so a plan makes no difference to it.
_SELECTABLE = tuple(collective for collective in COLLECTIVES if collective != "barrier")

REPRODUCIBLE = ("off", "ranks", "world")

# A collective, the name of its algorithm and, if that is registered, what makes the plans.
Choice = tuple[Collective, str, Callable[[int, int], list[Plan]] | None]


@dataclass(frozen=True)
class Options:
    """The options of a group of the backend "ring", the same on all its ranks.

    Args:
        algorithm: a name that ``help(ringcomm.plan)`` lists or `ringcomm.plan.register` was given,
            for all collectives that have an algorithm of this name; or names by collective, such as
            ``{"all_reduce": "mine", "all_to_all": "bruck"}``, or as text
            ``"all_reduce=mine,all_to_all=bruck"``. Collectives that are left out, and ``"auto"``,
            choose by themselves. RINGCOMM_ALGORITHM if not given.
        ranks_per_host: which ranks share a host, for algorithms that treat them differently: so
            many consecutive ranks, or the number of each host in turn, such as ``[3, 2, 2]``.
            RINGCOMM_RANKS_PER_HOST, which is about the ranks of the default group, if not given.
        channels: GPUs: the number of independent rings, 1 to 64. Each has a part of the buffer, an
            NCCL communicator and streams; another one is used only if its part is at least 5 MB.
        slice_nbytes: GPUs: the most bytes that a rank receives at once to be added, in one channel,
            1 to 68719476736. The scratch memory of a rank is 3 times this for each channel.
        max_ctas: GPUs: the most CTAs (thread blocks) of a rank, 1 to 1024: NCCL's in all channels
            together, or those of a fused kernel. None: 32, and at most a fifth of the
            multiprocessors. ``NCCL_MAX_CTAS`` overrides it for NCCL.
        is_high_priority_stream: GPUs: whether the group's streams have the highest priority, so
            that its kernels, which other ranks wait for, begin before others that wait for
            multiprocessors. Ranks may differ. Unlike torch's NCCL, true if not given.
        reproducible: ``"ranks"`` if sums of floats are to depend on the ranks' values and their
            number alone, to the bit, as the documentation's page "Reproducible sums" promises;
            ``"world"`` if those of `ringcomm.sum_of_parts` are not to depend on the number either;
            ``"off"`` if neither. RINGCOMM_REPRODUCIBLE, or "off", if not given.
        check_finite: whether NaN and infinity in what this rank sends are an error: here a
            ValueError, which says where the first one is, and on the other ranks a
            DistBackendError. Only tensors on the CPU are looked at. Ranks may differ.
            RINGCOMM_CHECK_FINITE, or False, if not given.
    """

    algorithm: str | Mapping[str, str] | None = None
    ranks_per_host: RanksPerHost | None = None
    channels: int = streams.Layout().num_channels
    slice_nbytes: int = streams.Layout().slice_nbytes
    max_ctas: int | None = None
    is_high_priority_stream: bool = True
    reproducible: str | None = None
    check_finite: bool | None = None

    # A DeviceMesh looks here for the timeout of its groups; None stands for torch's default.
    _timeout: ClassVar[None] = None


def reproducible(options: Options) -> str:
    """What sums depend on, by the options or the environment.

    Raises:
        ValueError: the options or RINGCOMM_REPRODUCIBLE say what is not in REPRODUCIBLE.
    """
    if options.reproducible is None:
        return one_of("RINGCOMM_REPRODUCIBLE", REPRODUCIBLE)
    if options.reproducible not in REPRODUCIBLE:
        raise ValueError(
            f"reproducible of ringcomm.Options must be one of {', '.join(REPRODUCIBLE)}, got "
            f"{options.reproducible!r}"
        )
    return options.reproducible


def check_finite(options: Options) -> bool:
    """Whether values are looked at, by the options or the environment.

    Raises:
        ValueError: the options or RINGCOMM_CHECK_FINITE say neither yes nor no.
    """
    if options.check_finite is None:
        return switch("RINGCOMM_CHECK_FINITE")
    _refuse_other_than_bool("check_finite", options.check_finite)
    return options.check_finite


def _refuse_other_than_bool(name: str, value: object) -> None:
    if type(value) is not bool:
        raise ValueError(f"{name} of ringcomm.Options must be True or False, got {value!r}")


def on_devices(options: Options) -> tuple[int, int, int | None]:
    """The channels, slices and CTAs on GPUs.

    Raises:
        ValueError: one of them is out of its range, or the priority is no bool.
    """
    for name, most in ("channels", 64), ("slice_nbytes", 1 << 36), ("max_ctas", 1024):
        value = getattr(options, name)
        if value is None and name == "max_ctas":
            continue
        if type(value) is not int or not 1 <= value <= most:
            # Python prints no integer of thousands of digits.
            got = f", got {value!r}" if type(value) is not int or abs(value) < 1 << 64 else ""
            raise ValueError(f"{name} of ringcomm.Options must be an integer from 1 to {most}{got}")
    _refuse_other_than_bool("is_high_priority_stream", options.is_high_priority_stream)
    return options.channels, options.slice_nbytes, options.max_ctas


def choices(options: Options) -> list[Choice]:
    """The algorithms that the options or the environment name.

    Raises:
        ValueError: a name that no collective has, or a collective that has none of this name.
    """
    if options.algorithm is not None:
        return list(_choices(options.algorithm, "algorithm"))
    return list(_choices(value_of("RINGCOMM_ALGORITHM", "auto"), "RINGCOMM_ALGORITHM"))


def hosts(options: Options, global_ranks: Sequence[int]) -> list[int]:
    """The number of each rank's host; empty if it was not given.

    Args:
        options: of the group.
        global_ranks: its ranks in the default group.

    Raises:
        ValueError: hosts that do not have these ranks.
    """
    if options.ranks_per_host is not None:
        return host_of(options.ranks_per_host, len(global_ranks))
    text = value_of("RINGCOMM_RANKS_PER_HOST")
    if not text:
        return []
    sizes = text.split(",")
    if not all(is_integer(size, 1, MOST_RANKS) for size in sizes):
        raise ValueError(
            f"RINGCOMM_RANKS_PER_HOST is {shown(text)}; it must be one integer from 1 to "
            f"{MOST_RANKS}, or one for each host, such as 3,2,2"
        )
    if len(sizes) == 1:
        return [rank // int(sizes[0]) for rank in global_ranks]
    ends = list(accumulate(map(int, sizes)))
    if max(global_ranks) >= ends[-1]:
        raise ValueError(
            f"RINGCOMM_RANKS_PER_HOST is {shown(text)}, which is {ends[-1]} ranks, and there is a "
            f"rank {max(global_ranks)}"
        )
    return [bisect_right(ends, rank) for rank in global_ranks]


def _choices(algorithm: str | Mapping[str, str], origin: str) -> Iterator[Choice]:
    for collective, name in _by_collective(algorithm, origin):
        if name == "auto":
            continue
        collectives = _SELECTABLE if collective is None else (collective,)
        having = [each for each in collectives if name in _names(each)]
        if not having:
            known = dict.fromkeys(chain.from_iterable(map(_names, collectives)))
            raise ValueError(
                f"{origin} is {algorithm!r}; {'it' if collective is None else collective} must be "
                f"one of auto, {', '.join(known)}. What is registered with ringcomm.plan.register "
                "before the group is made is one of them, too"
                + (did_you_mean(name, ["auto", *known]) or ".")
            )
        for each in having:
            yield COLLECTIVES[each], name, _source(each, name)


def _by_collective(
    algorithm: str | Mapping[str, str], origin: str
) -> Iterator[tuple[str | None, str]]:
    """Names of algorithms, each of one collective or, with None, of all that have it."""
    if isinstance(algorithm, Mapping):
        pairs = list(algorithm.items())
    else:
        parts = [part.strip().rpartition("=") for part in algorithm.split(",")]
        pairs = [(collective.strip(), name.strip()) for collective, _, name in parts]
    for collective, name in pairs:
        if collective and collective not in _SELECTABLE:
            raise ValueError(
                f"{origin} is {algorithm!r}; {collective!r} is none of {', '.join(_SELECTABLE)}"
                + did_you_mean(collective, _SELECTABLE)
            )
        yield collective or None, name


def _names(collective: str) -> list[str]:
    return [*ALGORITHMS[collective], *registry.names(collective)]


def _source(collective: str, name: str) -> Callable[[int, int], list[Plan]] | None:
    if registry.registered(collective, name) is None:
        return None

    def plans(world_size: int, root: int) -> list[Plan]:
        chosen = registry.choose(collective, name, world_size, root if collective in ROOTED else 0)
        return chosen.plans(world_size)

    return plans
