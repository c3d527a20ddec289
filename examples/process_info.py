"""Which ranks take part: every rank sends the others where it runs, as bytes in tensors.

Tensors of an all-gather have the same count on all ranks, and texts have not. So the lengths go
first, and the texts are padded to the longest.

    torchrun --nproc-per-node 4 examples/process_info.py [--backend ring|gloo|nccl]
    python examples/process_info.py
"""

import os
import platform

import torch
import torch.distributed as dist
from launch import device, launch, say, title


def all_gather_bytes(data: bytes) -> list[bytes]:
    """What every rank passed in, in rank order."""
    world_size = dist.get_world_size()
    length = torch.tensor([len(data)], device=device())
    lengths = [torch.empty_like(length) for _ in range(world_size)]
    dist.all_gather(lengths, length)

    longest = max(int(length) for length in lengths)
    padded = torch.tensor(list(data.ljust(longest, b"\0")), dtype=torch.uint8, device=device())
    texts = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(texts, padded)
    return [
        bytes(text[: int(length)].tolist()) for text, length in zip(texts, lengths, strict=True)
    ]


def main() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    title(f"{world_size} ranks, each with a line of its own length")
    host, pid = platform.node(), os.getpid()
    line = f"rank {rank} is process {pid} on {host}, computes on {device()}" + "!" * rank
    lines = [data.decode() for data in all_gather_bytes(line.encode())]
    say(f"knows of {lines[(rank + 1) % world_size]!r} and {world_size - 1} others")
    assert lines[rank] == line
    for number, text in enumerate(lines):
        assert text.startswith(f"rank {number} is process") and text.endswith("!" * number)


if __name__ == "__main__":
    launch(main)
