"""What a collective moves: its buffers, its bandwidth factor, and what is one case to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


def _shared(world_size: int) -> float:
    """What reaches the other ranks, of a buffer with one chunk per rank."""
    return (world_size - 1) / world_size


def _twice_shared(world_size: int) -> float:
    return 2 * _shared(world_size)


def _whole(world_size: int) -> float:
    return 1.0


def _twice(world_size: int) -> float:
    return 2.0


@dataclass(frozen=True)
class Collective:
    """A collective as nccl-tests sees it.

    Attributes:
        input_chunks: whether the input has one chunk of `count` elements per rank, or is one.
        output_chunks: the same of the output.
        factor: busbw over algbw, of the world size (nccl-tests, doc/PERFORMANCE.md).
        in_place: whether input and output can share memory.
    """

    name: str
    input_chunks: bool = False
    output_chunks: bool = False
    factor: Callable[[int], float] = _whole
    reduces: bool = False
    rooted: bool = False
    in_place: bool = True


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective("all_reduce", factor=_twice_shared, reduces=True),
        Collective("reduce_scatter", input_chunks=True, factor=_shared, reduces=True),
        Collective("all_gather", output_chunks=True, factor=_shared),
        Collective("broadcast", rooted=True),
        Collective("reduce", reduces=True, rooted=True),
        Collective("gather", output_chunks=True, factor=_shared, rooted=True),
        Collective("scatter", input_chunks=True, factor=_shared, rooted=True),
        Collective(
            "all_to_all", input_chunks=True, output_chunks=True, factor=_shared, in_place=False
        ),
        Collective("sendrecv", in_place=False),
        # There and back between two neighbours, as osu_latency does: twice what one way takes.
        Collective("pingpong", factor=_twice, in_place=False),
        Collective("barrier", in_place=False),
    )
}


@dataclass(frozen=True)
class Case:
    """One row of a table, but for the backend."""

    collective: Collective
    count: int
    dtype: torch.dtype
    op: str  # of options.OPS; "none" if nothing is reduced
    root: int  # -1 if there is none
    rank: int
    world_size: int
    device: torch.device

    @property
    def partner(self) -> int | None:
        """The peer of this rank in a pingpong. The last one of an odd number of ranks has none."""
        partner = self.rank ^ 1
        return partner if partner < self.world_size else None

    @property
    def chunks(self) -> int:
        """The number of chunks of the larger of the two buffers."""
        chunked = self.collective.input_chunks or self.collective.output_chunks
        return self.world_size if chunked else 1

    @property
    def nbytes(self) -> int:
        """The bytes of the larger of the two buffers: nccl-tests' column "size"."""
        return self.count * self.chunks * self.dtype.itemsize

    @property
    def repeats(self) -> int:
        """Calls in one sample, so that for small ones the clock and the barrier do not matter.

        Not so many that their buffers, each with its own, would not fit into a core's cache.
        """
        return min(50, max(1, (1 << 19) // max(1, self.nbytes)))

    def buffer(self) -> torch.Tensor:
        """The larger of the two."""
        return torch.zeros(self.count * self.chunks, dtype=self.dtype, device=self.device)

    def input_and_output(
        self, whole: torch.Tensor, other: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As they lie in two buffers; in place, which is one, the smaller is this rank's chunk."""
        if whole is other:
            own = whole.view(self.chunks, self.count)[self.rank % self.chunks]
            of_input = whole if self.collective.input_chunks else own
            return of_input, whole if self.collective.output_chunks else own
        n = self.world_size
        return (
            whole[: self.count * (n if self.collective.input_chunks else 1)],
            other[: self.count * (n if self.collective.output_chunks else 1)],
        )


def case_of(
    name: str,
    nbytes: int,
    dtype: torch.dtype,
    op: str,
    root: int,
    rank: int,
    world_size: int,
    device: torch.device,
) -> Case:
    """The case of at most `nbytes`, or of one element if these are fewer."""
    collective = COLLECTIVES[name]
    chunked = collective.input_chunks or collective.output_chunks
    count = nbytes // dtype.itemsize // (world_size if chunked else 1)
    return Case(
        collective,
        0 if name == "barrier" else max(1, count),
        dtype,
        op if collective.reduces else "none",
        root if collective.rooted else -1,
        rank,
        world_size,
        device,
    )
