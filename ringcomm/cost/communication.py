"""How long communication takes, and whether computation hides it.

A ratio is communication time over the time of the computation beside it: up to 1 the communication
can be hidden. The formulas are those of Tazi et al., The Ultra-Scale Playbook: Training LLMs on GPU
clusters, Hugging Face 2025, appendix A3, corrected as each function says. For all of them:

- The playbook divides numbers of elements by bytes per second. Here elements are multiplied with
  ``element_nbytes``, 2 for bfloat16, so the ratios are that many times the playbook's.
- bandwidth is what one rank sends per second in one direction, in bytes, while it receives as much:
  nccl-tests' busbw. flops is what one rank computes per second in that element type.
- The volume a rank sends in an all-gather or reduce-scatter of nbytes over n ranks is
  (n-1)/n * nbytes, which hardly depends on n. The playbook's text has nbytes/n ("16h²/DP bytes per
  rank"), the part that one rank contributes; its times are those of the whole.
"""

from __future__ import annotations


def all_reduce_seconds(
    nbytes: float, world_size: int, bandwidth: float, latency: float = 0.0
) -> float:
    """Around a ring: 2(n-1) latencies and 2(n-1)/n * nbytes at `bandwidth` bytes per second.

    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC
    69(2), 2009; `ringcomm.plan.simulate` gives the same.
    """
    return 2 * all_gather_seconds(nbytes, world_size, bandwidth, latency)


def all_gather_seconds(
    nbytes: float, world_size: int, bandwidth: float, latency: float = 0.0
) -> float:
    """Around a ring, as does a reduce-scatter: n-1 latencies and (n-1)/n * nbytes.

    nbytes is the whole: what an all-gather ends with, what a reduce-scatter begins with.
    """
    steps = world_size - 1
    return steps * latency + steps / world_size * nbytes / bandwidth


def send_seconds(nbytes: float, bandwidth: float, latency: float = 0.0) -> float:
    """One message."""
    return latency + nbytes / bandwidth


def data_parallel_ratio(
    dp: int, num_tokens: int, flops: float, bandwidth: float, element_nbytes: int = 2
) -> float:
    """Gradient all-reduce over backward pass.

    For P parameters:  2(dp-1)/dp * P * element_nbytes / bandwidth  over
    4 * num_tokens * P / flops,

        element_nbytes / (2 * num_tokens) * (dp-1)/dp * flops / bandwidth.

    P cancels, for the model as for each bucket of gradients. Corrected: the playbook's ratio keeps
    a factor num_params, because its communication time is that of one bucket and its computation
    time that of the whole model; and it lacks the size of an element. Where a token passes some
    experts only, more is sent than computed with: the ratio is to be multiplied with all parameters
    over active ones, as `ringcomm.cost.overlaps` does, here and for ZeRO-3.

    Args:
        num_tokens: of the micro-batch during whose backward pass gradients are reduced, per
            replica. With gradient accumulation only the last one's counts.
    """
    return element_nbytes / (2 * num_tokens) * (dp - 1) / dp * flops / bandwidth


def data_parallel_crossover(
    dp: int, flops: float, bandwidth: float, element_nbytes: int = 2
) -> float:
    """Tokens per replica and micro-batch from which `data_parallel_ratio` is at most 1."""
    return data_parallel_ratio(dp, 1, flops, bandwidth, element_nbytes)


def zero3_ratio(
    dp: int,
    num_tokens: int,
    flops: float,
    bandwidth: float,
    element_nbytes: int = 2,
) -> float:
    """All-gather of one layer's parameters over the forward pass of the layer before it.

    For P parameters:  (dp-1)/dp * P * element_nbytes / bandwidth  over  2 * num_tokens * P / flops,

        element_nbytes / (2 * num_tokens) * (dp-1)/dp * flops / bandwidth.

    The layer's P cancels, 16h² or not. In the backward pass there is a reduce-scatter of as many
    gradients, too, beside twice the computation: the same ratio, if gradients travel in the type
    of the parameters. So ZeRO-3 is hidden from as many tokens on as plain data parallelism; its
    volume is 3/2 of that, but it may hide in the forward pass, too. Corrected: the size of an
    element; and "3 * 16h²/DP bytes" per layer are 3 (dp-1)/dp * 16h² elements.
    """
    return element_nbytes / (2 * num_tokens) * (dp - 1) / dp * flops / bandwidth


def tensor_parallel_ratio(
    tp: int, out_features: int, flops: float, bandwidth: float, element_nbytes: int = 2
) -> float:
    """All-gather of a column-parallel linear's input over the linear itself.

    With sequence parallelism, of T tokens of width h:
    (tp-1)/tp * T * h * element_nbytes / bandwidth  over  2 * T * h * out_features / tp / flops,

        element_nbytes * (tp-1) / (2 * out_features) * flops / bandwidth,

    whatever T and h are. A row-parallel linear and the reduce-scatter of its output have the same
    ratio with in_features in place of out_features. Corrected: the size of an element; and the
    playbook's linear has h output features, where those of a block have h + 2kv (queries, keys,
    values), f or 2f (MLP): so it understates what is hidden. It also takes the computation to be
    beside the communication: the linear needs the gathered input, so hiding one behind the other
    takes a linear that is cut into pieces. Otherwise all of it is exposed.

    Args:
        out_features: of the whole linear, over all tp ranks.
    """
    return element_nbytes * (tp - 1) / (2 * out_features) * flops / bandwidth


def tensor_parallel_crossover(
    out_features: int, flops: float, bandwidth: float, element_nbytes: int = 2
) -> float:
    """The number of tensor-parallel ranks up to which `tensor_parallel_ratio` is at most 1."""
    return 1 + 2 * out_features * bandwidth / (element_nbytes * flops)


def pipeline_parallel_ratio(
    hidden_size: int,
    params_per_layer: int,
    layers_per_stage: float,
    flops: float,
    bandwidth: float,
    element_nbytes: int = 2,
) -> float:
    """Sending a micro-batch's activations on over the next stage's forward pass.

    For T tokens:  T * h * element_nbytes / bandwidth  over
    2 * T * params_per_layer * layers_per_stage / flops,

        element_nbytes * h / (2 * params_per_layer * layers_per_stage) * flops / bandwidth.

    In the backward pass as much is sent beside twice the computation: half the ratio. Receiving
    and sending, which the playbook adds up, go in both directions of a link at once. Tensor
    parallelism with sequence parallelism divides both sides and changes nothing. Corrected: the
    size of an element; with 16h² parameters per layer this is the playbook's
    flops / (32 h * layers * bandwidth) times element_nbytes.
    """
    compute = 2 * params_per_layer * layers_per_stage / flops
    return element_nbytes * hidden_size / bandwidth / compute


def pipeline_parallel_crossover(
    hidden_size: int,
    params_per_layer: int,
    flops: float,
    bandwidth: float,
    element_nbytes: int = 2,
) -> float:
    """Layers per stage from which `pipeline_parallel_ratio` is at most 1."""
    return pipeline_parallel_ratio(
        hidden_size, params_per_layer, 1, flops, bandwidth, element_nbytes
    )


def pipeline_bubble_fraction(pp: int, micro_batches: int) -> float:
    """The part of a step in which a stage idles, with GPipe or 1F1B: (p-1) / (m+p-1).

    The playbook gives (p-1)/m, which is the idle time over the busy time, not over the step
    (Huang et al., GPipe, arXiv:1811.06965; Narayanan et al., arXiv:2104.04473, section 2.2).
    """
    return (pp - 1) / (micro_batches + pp - 1)
