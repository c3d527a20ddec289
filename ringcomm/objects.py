"""Objects of any kind, sent between ranks. What is said in `ringcomm.collectives` holds here too.

An object travels as the bytes that pickle makes of it, whose number goes first: two calls on
tensors. With `weights_only`, which torch has from 2.14 on, it is read by torch.load, which makes
tensors and plain containers only; pickle can be made to run any code, so take objects from ranks
that you trust. An object that cannot be pickled is an error on every rank.
"""

from __future__ import annotations

import torch.distributed as dist

from ringcomm._delegate import announce_nothing, by_ring
from ringcomm.p2p import announce_to_peer


@by_ring(dist.all_gather_object, sends_objects=True)
def all_gather_object() -> None:
    """object_list[r] becomes rank r's object, on every rank.

    Args:
        object_list: one element per rank; output.
        obj: what this rank sends.
        group: the default group if not given.
        weights_only: as said above, the same on all ranks.
    """


@by_ring(dist.gather_object, sends_objects=True)
def gather_object() -> None:
    """object_gather_list[r] becomes rank r's object, on one rank.

    Args:
        obj: what this rank sends.
        object_gather_list: on the destination one element per rank; elsewhere None.
        dst: the destination's global rank; 0 if neither it nor group_dst is given.
        group: the default group if not given.
        group_dst: the destination's rank in the group.
        weights_only: as said above, the same on all ranks.
    """


@by_ring(dist.broadcast_object_list, sends_objects=True)
def broadcast_object_list() -> None:
    """The elements of every rank's list become those of one rank.

    Args:
        object_list: the same number of elements on all ranks; input on the source, else output.
        src: the source's global rank; 0 if neither it nor group_src is given.
        group: the default group if not given.
        device: of the tensors that carry the objects; the CPU if not given.
        group_src: the source's rank in the group.
        weights_only: as said above, the same on all ranks.
    """


@by_ring(dist.scatter_object_list, sends_objects=True)
def scatter_object_list() -> None:
    """The first element of rank r's output list becomes scatter_object_input_list[r] of one rank.

    Args:
        scatter_object_output_list: of one element or more.
        scatter_object_input_list: on the source one object per rank; elsewhere it is not read.
        src: the source's global rank; 0 if neither it nor group_src is given.
        group: the default group if not given.
        group_src: the source's rank in the group.
        weights_only: as said above, the same on all ranks.
    """


@by_ring(dist.send_object_list, announce_to_peer, sends_objects=True)
def send_object_list() -> None:
    """Sends the elements of a list to a rank, and waits until they may be changed again.

    Args:
        object_list: what is sent.
        dst: the destination's global rank; 0 if neither it nor group_dst is given.
        group: the default group if not given.
        device: of the tensors that carry the objects; the CPU if not given.
        group_dst: the destination's rank in the group.
        use_batch: send by batch_isend_irecv, as the receiver does.
        weights_only: as said above, the same on both ranks.
    """


@by_ring(dist.recv_object_list, announce_nothing, sends_objects=True)
def recv_object_list() -> None:
    """Receives into the elements of a list, and returns the source's global rank.

    Args:
        object_list: as many elements as are sent; output.
        src: the source's global rank; any if neither it nor group_src is given.
        group: the default group if not given.
        device: of the tensors that carry the objects; the CPU if not given.
        group_src: the source's rank in the group.
        use_batch: receive by batch_isend_irecv, as the sender does.
        weights_only: as said above, the same on both ranks.
    """
