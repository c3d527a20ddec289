"""Messages between two ranks: blocking, with work in between, and in batches.

torchrun --nproc-per-node 4 examples/point_to_point.py [--backend ring|gloo|nccl]
python examples/point_to_point.py
"""

import torch
import torch.distributed as dist
from launch import device, launch, say, title


def main() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world_size, (rank - 1) % world_size

    title("send and recv: a number goes from rank to rank, and each adds its own")
    number = torch.zeros(1, device=device())
    if rank > 0:
        dist.recv(number, src=before)
    number += rank
    if rank < world_size - 1:
        dist.send(number, dst=after)
    say(f"passes on {number.item():.0f}")
    assert number.item() == sum(range(rank + 1))

    title("isend and irecv: even ranks send to the odd ones after them; all work meanwhile")
    message = torch.full((1000,), float(rank), device=device())
    work = None
    if rank % 2 == 1:
        work = dist.irecv(message, src=before)  # message is undefined until wait() returns
    elif rank + 1 < world_size:
        work = dist.isend(message, dst=after)  # message must not change until then
    result = sum(i * i for i in range(10_000))
    if work is not None:
        work.wait()
    say(f"computed {result}, then had {message[0].item():.0f}")
    assert (message == rank - rank % 2).all()

    title("batch_isend_irecv: everyone sends to the next and receives from the previous at once")
    outgoing = torch.full((1000,), float(rank), device=device())
    incoming = torch.empty_like(outgoing)
    operations = [
        dist.P2POp(dist.isend, outgoing, after),
        dist.P2POp(dist.irecv, incoming, before),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    say(f"sent {outgoing[0].item():.0f}, received {incoming[0].item():.0f}")
    assert (incoming == before).all()


if __name__ == "__main__":
    launch(main, at_least=2)
