"""What training keeps in memory, in bytes (GB are 1e9 bytes; the playbook's figures are in GiB)."""

from __future__ import annotations

from dataclasses import dataclass

from ringcomm.cost.layout import Layout
from ringcomm.cost.transformer import Transformer


@dataclass(frozen=True)
class Precision:
    """Bytes of what training keeps. The default is bfloat16 with Adam in float32.

    The playbook's 2 + 2 + 4 + 8 = 16 bytes, or 20 with ``gradients=6``, where gradients are
    accumulated in float32 beside the bfloat16 ones. Corrected: its appendix A2 gives "6h²" for the
    optimizer of an h² weight, which counts three float32 numbers in units of 2 bytes; they are 3h²
    numbers, 12 bytes per parameter.

    Args:
        parameters: what is multiplied with; this and the next two per parameter.
        gradients: what is reduced, and accumulated.
        optimizer: the master copy of the parameters (4), momentum (4) and variance (4).
        activations: per number that is kept for the backward pass.
    """

    parameters: int = 2
    gradients: int = 2
    optimizer: int = 12
    activations: int = 2


BFLOAT16 = Precision()
FLOAT32 = Precision(parameters=4, gradients=4, optimizer=8, activations=4)


@dataclass(frozen=True)
class Memory:
    """Bytes on the rank that needs most of them."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All four; buffers, fragmentation and the logits are not counted."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def params_per_rank(model: Transformer, layout: Layout) -> int:
    """Parameters on a rank of the largest pipeline stage, before ZeRO shards them.

    Stages have ceil(L / pp) layers; the first has the embedding, too, the last the output
    projection, of which the larger counts if they differ. Tensor parallelism divides all of it
    (the norms, which it does not divide, are a ten-thousandth), each expert, too: a rank has a part
    of every expert. Heads of keys and values are replicated as `Transformer.over` says.

    Raises:
        ValueError: tensor parallelism does not divide the heads.
    """
    model = model.over(layout.tp)
    blocks = model.blocks(-(-model.num_layers // layout.pp))
    layers = sum(count * kind.params_per_layer for kind, count in blocks)
    if layout.pp == 1:
        ends = model.embedding_params + model.head_params
    else:
        ends = max(model.embedding_params, model.head_params)
    return -(-(layers + ends) // layout.tp)


def activation_nbytes_per_layer(
    model: Transformer,
    num_tokens: int,
    seq_len: int,
    *,
    tp: int = 1,
    sequence_parallel: bool = True,
    recompute: str = "selective",
    element_nbytes: int = 2,
) -> int:
    """Bytes that one block keeps for its backward pass.

    Counted from the operations, in numbers per token (Korthikanti et al., Reducing activation
    recomputation in large transformer models, arXiv:2205.05198, section 4): h for the input of each
    norm and of the first linear of attention and MLP; h for queries, kv for keys and for values, h
    for the input of the output projection; f before and f after the activation function, twice that
    with a gate; one per score after softmax. Dropout adds masks of 1 byte, h after attention and
    MLP each and one per score, and each score dropped out. With experts, f is what those that a
    token passes widen to, and each of the chosen ones keeps its copy of the h numbers that go in.
    Latent attention keeps keys and values of all heads, and its narrow vectors before and after
    their norm.

    With 2 bytes, dropout, f = 4h, no gate and no grouped queries this is the playbook's
    s b h (34 + 5 a s / h), which is in bytes already, not in elements. Corrected: that holds for
    this architecture only, and the scores, 5 a s / h, are what neither FlashAttention nor selective
    recomputation keeps.

    Args:
        num_tokens: of one micro-batch, s*b.
        seq_len: s.
        tp: tensor-parallel ranks. They share all but norms, inputs of linears and masks of dropout,
            and these, too, with sequence parallelism.
        recompute: ``"none"``; ``"selective"``: scores are computed again, as FlashAttention does;
            ``"full"``: only the h numbers of a block's input are kept.

    Raises:
        ValueError: an unknown way to recompute, or tp does not divide the heads.
    """
    model = model.over(tp)
    h, f = model.hidden_size, model.active_ffn_size
    if recompute not in ("none", "selective", "full"):
        raise ValueError(f"recompute must be 'none', 'selective' or 'full', got {recompute!r}")
    masks = 2 * h if model.dropout else 0
    if recompute == "full":
        replicated, shared = element_nbytes * h, 0
    else:
        copies = h * model.experts.per_token if model.experts else 0
        replicated = element_nbytes * (4 * h + copies + model.latent_size) + masks
        attention = model.q_size + model.kv_sizes + model.attention_size
        shared = element_nbytes * (attention + (4 if model.gated else 2) * f)
    if recompute == "none":
        per_score = 2 * element_nbytes + 1 if model.dropout else element_nbytes
        shared += per_score * model.num_heads * seq_len
    if sequence_parallel:
        return num_tokens * (replicated + shared) // tp
    return num_tokens * (replicated + shared // tp)


def training_memory(
    model: Transformer,
    layout: Layout,
    precision: Precision = BFLOAT16,
    recompute: str = "selective",
) -> Memory:
    """Bytes per rank. ZeRO 1 shards the optimizer over dp, 2 also gradients, 3 also parameters.

    The first stage of a pipeline with one forward, one backward (1F1B) keeps the activations of
    min(pp, micro_batches) micro-batches at once.

    Raises:
        ValueError: an unknown way to recompute, or tensor parallelism does not divide the heads.
    """
    num_params = params_per_rank(model, layout)

    def sharded(nbytes_per_param: int, from_stage: int) -> int:
        ranks = layout.dp if layout.zero >= from_stage else 1
        return -(-num_params * nbytes_per_param // ranks)

    kept = sum(
        count
        * activation_nbytes_per_layer(
            kind,
            layout.num_tokens,
            layout.seq_len,
            tp=layout.tp,
            sequence_parallel=layout.sequence_parallel,
            recompute=recompute,
            element_nbytes=precision.activations,
        )
        for kind, count in model.blocks(-(-model.num_layers // layout.pp))
    )
    return Memory(
        parameters=sharded(precision.parameters, 3),
        gradients=sharded(precision.gradients, 2),
        optimizer=sharded(precision.optimizer, 1),
        activations=kept * min(layout.pp, layout.micro_batches),
    )
