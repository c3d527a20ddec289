"""Is the communication of a training step hidden behind its computation, and from where on?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ringcomm.cost import communication
from ringcomm.cost.layout import Layout
from ringcomm.cost.machine import Machine
from ringcomm.cost.memory import params_per_rank
from ringcomm.cost.transformer import Transformer
from ringcomm.plan.network import Link

BUCKET_NBYTES = 25 * 2**20  # DistributedDataParallel's default


@dataclass(frozen=True)
class Overlap:
    """Communication and the computation that it can be hidden behind.

    Args:
        name: the parallelism, and the computation: the forward or backward pass (of one layer for
            ZeRO-3, of the next stage for PP), or a linear.
        collective: what communicates: the gradients (DP, ZeRO-1 and 2 backward), the parameters
            (forward), a layer's parameters and gradients (ZeRO-3), activations (TP, PP).
        crosses_hosts: some of it goes over the links between hosts, at whose pace all of it runs.
        nbytes: the data: what an all-reduce sums, an all-gather ends with, a stage sends.
        communication: seconds.
        computation: seconds.
        crossover: from where on, or up to where, it is hidden, as `ringcomm.cost.communication` has
            it: without latencies and without the operations of attention.
    """

    name: str
    collective: str
    crosses_hosts: bool
    nbytes: float
    communication: float
    computation: float
    crossover: str

    @property
    def ratio(self) -> float:
        """Communication over computation."""
        return self.communication / self.computation

    @property
    def hidden(self) -> bool:
        """Whether the computation takes at least as long."""
        return self.ratio <= 1


def overlaps(model: Transformer, machine: Machine, layout: Layout) -> list[Overlap]:
    """What a step of training sends, for each kind of parallelism in the layout.

    Times have latencies, of rings; otherwise ratios are those of `ringcomm.cost.communication` but
    that the operations of attention are counted, too. Groups whose ranks are not all on one host
    run at the pace of the links between hosts. Experts are spread like any MLP: tensor parallelism
    divides each of them, and there is no expert parallelism, so no all-to-all. Their gradients and
    parameters travel whole, also where a token passes some of them only.

    Raises:
        ValueError: tensor parallelism does not divide the heads.
    """
    model = model.over(layout.tp)
    return [
        *_data_parallel(model, machine, layout),
        *_tensor_parallel(model, machine, layout),
        *_pipeline_parallel(model, machine, layout),
    ]


def _data_parallel(model: Transformer, machine: Machine, layout: Layout) -> Iterator[Overlap]:
    if layout.dp == 1:
        return
    crosses, link = _link(machine, layout.tp, layout.dp)
    tokens = communication.data_parallel_crossover(
        layout.dp, machine.flops, link.bandwidth, machine.element_nbytes
    )
    tokens *= _sent_per_active(model, layout)
    crossover = f"≥ {math.ceil(tokens):,} tokens"
    if layout.zero == 3:
        layer = model.layer_forward_flops(layout.num_tokens, layout.seq_len) / layout.tp
        seconds = layer / machine.flops
        nbytes = model.params_per_layer * machine.element_nbytes / layout.tp
        gather = communication.all_gather_seconds(nbytes, layout.dp, link.bandwidth, link.latency)
        yield Overlap("ZeRO-3, forward", "all-gather", crosses, nbytes, gather, seconds, crossover)
        yield Overlap(
            "ZeRO-3, backward",
            "gather, scatter",
            crosses,
            2 * nbytes,
            2 * gather,
            2 * seconds,
            crossover,
        )
        return
    nbytes = params_per_rank(model, layout) * machine.element_nbytes
    forward = model.forward_flops(layout.num_tokens, layout.seq_len) / (layout.pp * layout.tp)
    backward_seconds = 2 * forward / machine.flops
    latency = math.ceil(nbytes / BUCKET_NBYTES) * link.latency
    half = communication.all_gather_seconds(nbytes, layout.dp, link.bandwidth, latency)
    if layout.zero == 0:
        yield Overlap(
            "DP, backward", "all-reduce", crosses, nbytes, 2 * half, backward_seconds, crossover
        )
        return
    yield Overlap(
        f"ZeRO-{layout.zero}, backward",
        "reduce-scatter",
        crosses,
        nbytes,
        half,
        backward_seconds,
        f"≥ {math.ceil(tokens / 2):,} tokens",
    )
    yield Overlap(
        f"ZeRO-{layout.zero}, forward",
        "all-gather",
        crosses,
        nbytes,
        half,
        backward_seconds / 2,
        crossover,
    )


def _sent_per_active(model: Transformer, layout: Layout) -> float:
    """Parameters that are sent over those that a token is computed with: 1 without experts."""
    if layout.zero == 3:
        layer = model.params_per_layer
        return layer / (layer - model.idle_params_per_layer)
    return model.num_params / model.active_params


def _tensor_parallel(model: Transformer, machine: Machine, layout: Layout) -> Iterator[Overlap]:
    if layout.tp == 1:
        return
    crosses, link = _link(machine, 1, layout.tp)
    h, tokens = model.hidden_size, layout.num_tokens
    nbytes = tokens * h * machine.element_nbytes
    seconds = communication.all_gather_seconds(nbytes, layout.tp, link.bandwidth, link.latency)
    for name, collective, features in (
        ("QKV", "all-gather", model.qkv_params // h),
        ("attention out", "reduce-scatter", model.attention_size),
        ("MLP in", "all-gather", (2 if model.gated else 1) * model.active_ffn_size),
        ("MLP out", "reduce-scatter", model.active_ffn_size),
    ):
        most = communication.tensor_parallel_crossover(
            features, machine.flops, link.bandwidth, machine.element_nbytes
        )
        yield Overlap(
            f"TP, {name}",
            collective,
            crosses,
            nbytes,
            seconds,
            2 * tokens * h * features / layout.tp / machine.flops,
            f"tp ≤ {math.floor(most)}",
        )


def _pipeline_parallel(model: Transformer, machine: Machine, layout: Layout) -> Iterator[Overlap]:
    if layout.pp == 1:
        return
    crosses = layout.world_size > machine.ranks_per_host
    link = machine.across if crosses else machine.inside
    nbytes: float = layout.num_tokens * model.hidden_size * machine.element_nbytes
    if layout.sequence_parallel:
        nbytes /= layout.tp
    layers = model.num_layers / layout.pp
    per_layer = model.layer_forward_flops(layout.num_tokens, layout.seq_len) / layout.tp
    least = communication.pipeline_parallel_crossover(
        model.hidden_size,
        model.linear_params_per_layer,
        machine.flops,
        link.bandwidth,
        machine.element_nbytes,
    )
    yield Overlap(
        "PP, forward",
        "send",
        crosses,
        nbytes,
        communication.send_seconds(nbytes, link.bandwidth, link.latency),
        layers * per_layer / machine.flops,
        f"≥ {math.ceil(least)} layers a stage",
    )


def _link(machine: Machine, stride: int, size: int) -> tuple[bool, Link]:
    """Whether a group of `size` ranks that are `stride` apart spans hosts, and a link of its ring.

    Every step waits for the slowest link, but what goes around passes each link once: bandwidth is
    the least, latency the mean over the ring.
    """
    if stride * size <= machine.ranks_per_host:
        return False, machine.inside
    hosts = math.ceil(size / max(1, machine.ranks_per_host // stride))
    latency = (hosts * machine.across.latency + (size - hosts) * machine.inside.latency) / size
    return True, Link(latency, min(machine.across.bandwidth, machine.inside.bandwidth))
