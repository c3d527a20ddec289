"""How training is spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """A parallel layout of dp * tp * pp ranks.

    Ranks are numbered with tensor parallelism innermost, then data, then pipeline parallelism, so
    that tensor-parallel ranks are neighbours on a host.

    Args:
        dp: data-parallel replicas.
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        zero: ZeRO's stage, 0 to 3; 3 is FSDP's full sharding.
        seq_len: tokens per sequence.
        micro_batch: sequences per replica and micro-batch.
        micro_batches: per replica and step.
        sequence_parallel: tensor-parallel ranks also divide what lies between the linears.

    Raises:
        ValueError: a number below 1, or a zero that is no stage.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0
    seq_len: int = 4096
    micro_batch: int = 1
    micro_batches: int = 1
    sequence_parallel: bool = True

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "seq_len", "micro_batch", "micro_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.zero not in range(4):
            raise ValueError(f"zero must be 0, 1, 2 or 3, got {self.zero}")

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.dp * self.tp * self.pp

    @property
    def num_tokens(self) -> int:
        """Tokens that a replica has in one micro-batch."""
        return self.seq_len * self.micro_batch
