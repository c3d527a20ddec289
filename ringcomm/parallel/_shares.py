"""Which part of a dimension belongs to this rank."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed import ProcessGroup


def rank_and_size(group: ProcessGroup | None) -> tuple[int, int]:
    """This rank's number in the group, and the group's size.

    Raises:
        ValueError: this rank is not in the group.
    """
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the group that it was given")
    return rank, dist.get_world_size(group)


def even_share(count: int, what: str, group: ProcessGroup | None) -> slice:
    """This rank's part of 0 ... count-1: as much as every rank has, in rank order.

    Args:
        what: what is divided, for the error's text.

    Raises:
        ValueError: the ranks cannot have equal parts, or this rank is not in the group.
    """
    rank, world_size = rank_and_size(group)
    if count % world_size:
        raise ValueError(
            f"{what} is {count}, which is no multiple of the group's {world_size} ranks; each "
            "rank must get an equal part"
        )
    part = count // world_size
    return slice(rank * part, (rank + 1) * part)


def uneven_share(count: int, group: ProcessGroup | None) -> slice:
    """This rank's part of 0 ... count-1; the first count % world_size ranks have one more.

    Raises:
        ValueError: this rank is not in the group.
    """
    rank, world_size = rank_and_size(group)
    part, extra = divmod(count, world_size)
    begin = rank * part + min(rank, extra)
    return slice(begin, begin + part + (rank < extra))
