"""Messages between two ranks. What is said in `ringcomm.collectives` holds here too.

If a message has another count or dtype than its receive wants, both ranks raise
torch.distributed.DistBackendError, and the group goes on. On the CPU a send is done when its last
byte is in the mail box of the two ranks (4 slots of 64 KiB with up to 4 ranks, smaller ones with
more): then only the receiver raises. If one rank's tensor is refused (ValueError), the other one
raises why, in the same way, and the message counts as sent and received. A negative tag raises only
on the rank that passes it, as no rank can wait for it. A receive from any rank raises as soon as a
rank that might have sent has died, or all have left.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import ProcessGroup, Work

from ringcomm import _C
from ringcomm._C import try_irecv_sync, try_isend_sync, try_recv_sync, try_send_sync
from ringcomm._delegate import Refused, check, on_ring
from ringcomm._fast_path import is_compiling, remember
from ringcomm.groups import ring_group, unwrapped

# The arguments that name it: its global rank, its rank in the group.
_PEERS = {True: ("dst", "group_dst"), False: ("src", "group_src")}
_ANY = -1  # of all peers


def announce_to_peer(backend: Backend, refused: Refused) -> None:
    """The peer's message raises the reason, if the arguments say which rank the peer is."""
    is_send = refused.function in (dist.send, dist.isend, dist.send_object_list)
    try:
        signature = inspect.signature(refused.function)
        given = signature.bind(*refused.args, **refused.kwargs).arguments
        in_world, in_group = (given.get(name) for name in _PEERS[is_send])
        peer: Any = in_group
        if in_group is None and in_world is not None:
            peer = dist.get_group_rank(given["group"], in_world)
        elif in_group is None and not is_send:
            peer = _ANY
        _C.refuse_message(unwrapped(backend), is_send, peer, given.get("tag", 0), refused.reason)
    except (TypeError, ValueError):
        return  # there is no such peer, or no such tag


# What the fast path cannot do is carried out by these.
_send = on_ring(dist.send, announce_to_peer)
_recv = on_ring(dist.recv, announce_to_peer)
_isend = on_ring(dist.isend, announce_to_peer)
_irecv = on_ring(dist.irecv, announce_to_peer)


def send(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Sends a tensor to a rank, and waits until it may be changed again.

    Args:
        tensor: any shape.
        dst: the destination's global rank, not this one's.
        group: the default group if not given.
        tag: which of the destination's receives it is for.
        group_dst: the destination's rank in the group; one of it and dst must be given.
    """
    if group_dst is None and not is_compiling() and try_send_sync(tensor, dst, tag, group):
        return
    _send(tensor, dst, group=group, tag=tag, group_dst=group_dst)


def recv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receives a tensor and returns the source's global rank.

    Args:
        tensor: as many elements as were sent; output.
        src: the source's global rank; any if neither it nor group_src is given.
        group: the default group if not given.
        tag: only what was sent with it.
        group_src: the source's rank in the group.
    """
    if group_src is None and not is_compiling() and try_recv_sync(tensor, src, tag, group):
        return cast(int, src)
    return _recv(tensor, src, group=group, tag=tag, group_src=group_src)


def isend(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """Starts to send a tensor to a rank, and returns a Work.

    Args:
        tensor: any shape; not to be changed until the Work's wait() returns.
        dst: the destination's global rank, not this one's.
        group: the default group if not given.
        tag: which of the destination's receives it is for.
        group_dst: the destination's rank in the group; one of it and dst must be given.
    """
    if (
        group_dst is None
        and not is_compiling()
        and (work := try_isend_sync(tensor, dst, tag, group))
    ):
        return work
    return _isend(tensor, dst, group=group, tag=tag, group_dst=group_dst)


def irecv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """Starts to receive a tensor, and returns a Work.

    Args:
        tensor: as many elements as are sent; undefined until the Work's wait() returns.
        src: the source's global rank; any if neither it nor group_src is given.
        group: the default group if not given.
        tag: only what is sent with it.
        group_src: the source's rank in the group.
    """
    if (
        group_src is None
        and not is_compiling()
        and (work := try_irecv_sync(tensor, src, tag, group))
    ):
        return work
    return _irecv(tensor, src, group=group, tag=tag, group_src=group_src)


class P2POp(dist.P2POp):
    """One operation for batch_isend_irecv; op is isend or irecv, ringcomm's or torch.distributed's.

    Args:
        op: isend or irecv.
        tensor: as for them.
        peer: the other's global rank.
        group: the default group if not given.
        tag: as for isend and irecv.
        group_peer: the other's rank in the group; one of it and peer must be given.

    Raises:
        ValueError: another op, or not one peer.
    """

    def __new__(cls, op: Callable[..., Any], *args: Any, **kwargs: Any) -> P2POp:
        made = super().__new__(cls, _of_torch(op), *args, **kwargs)
        assert isinstance(made, P2POp)
        return made

    def __init__(
        self,
        op: Callable[..., Work | None],
        tensor: torch.Tensor,
        peer: int | None = None,
        group: ProcessGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        super().__init__(_of_torch(op), tensor, peer, group, tag, group_peer)


def _of_torch(op: Callable[..., Any]) -> Callable[..., Any]:
    if op is isend:
        return dist.isend
    return dist.irecv if op is irecv else op


def batch_isend_irecv(p2p_op_list: Sequence[dist.P2POp]) -> list[Work]:
    """Starts all of the operations, in any order, and returns their Works.

    Args:
        p2p_op_list: P2POps of one group, ringcomm's or torch.distributed's.

    Raises:
        TypeError: an element is not a P2POp.
        ValueError: the operations are of different groups, or a tensor is_neg() or is_conj(), and
            then none begins; or a tensor is refused by the backend, and then those before it are
            under way, and those after it are not.
    """
    for op in p2p_op_list:
        if not isinstance(op, dist.P2POp):
            raise TypeError(f"p2p_op_list must hold P2POps, got {type(op).__name__}")
    if not p2p_op_list:
        return []
    group = p2p_op_list[0].group
    if any(op.group != group for op in p2p_op_list):
        raise ValueError("p2p_op_list holds operations of several groups; a batch is of one")
    try:
        check({"tensors": [op.tensor for op in p2p_op_list]})
    except ValueError as error:
        _announce_to_peers(ring_group(group), p2p_op_list, f"batch_isend_irecv: {error}")
        raise
    if all(op.tensor.device.type == "cpu" for op in p2p_op_list) and not is_compiling():
        return [_begun(op) for op in p2p_op_list]
    ring = ring_group(group)
    return dist.batch_isend_irecv(
        [
            dist.P2POp(op.op, op.tensor, group=ring, tag=op.tag, group_peer=op.group_peer)
            for op in p2p_op_list
        ]
    )


def _begun(op: dist.P2POp) -> Work:
    """What P2POp has checked once is not checked again."""
    is_send = op.op is dist.isend
    work = (try_isend_sync if is_send else try_irecv_sync)(op.tensor, op.peer, op.tag, op.group)
    if work is None:
        ring = ring_group(op.group)
        remember(op.group, ring)
        tensor = torch.view_as_real(op.tensor) if op.tensor.is_complex() else op.tensor
        work = (ring.send if is_send else ring.recv)([tensor], op.group_peer, op.tag)
    return work


def _announce_to_peers(ring: ProcessGroup, batch: Sequence[dist.P2POp], reason: str) -> None:
    """Those of messages between CPUs, none of which begins."""
    for op in batch:
        if op.tensor.device.type == "cpu":
            backend = unwrapped(ring._get_backend(op.tensor.device))
            _C.refuse_message(backend, op.op is dist.isend, op.group_peer, op.tag, reason)
