"""How many parameters a decoder-only transformer has, and how many operations it takes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Experts:
    """MLPs beside each other, of which a router chooses some for each token.

    They are counted as one wide MLP of which a token uses a part.

    Args:
        count: experts of a block that the router chooses from.
        per_token: those that it chooses.
        ffn_size: what one of them widens to.
        shared_ffn_size: what those widen to, together, that every token passes.
        num_layers: blocks that have experts, in place of an MLP of the model's ffn_size; None for
            all blocks.

    Raises:
        ValueError: a token passes more experts than there are.
    """

    count: int
    per_token: int
    ffn_size: int
    shared_ffn_size: int = 0
    num_layers: int | None = None

    def __post_init__(self) -> None:
        if self.per_token > self.count:
            raise ValueError(f"a token passes {self.per_token} experts, but there are {self.count}")


@dataclass(frozen=True)
class LatentAttention:
    """Attention whose keys and values are made of one narrow vector per token (MLA).

    DeepSeek-AI, DeepSeek-V2, arXiv:2405.04434, section 2.1. In training, keys and values are
    widened for each head, as here.

    Args:
        kv_rank: width of the vector that keys and values are made of.
        nope_dim: width of a head's query and key without a position.
        rope_dim: width of their rotary part; all heads share that of the key.
        v_dim: width of a head's value.
        q_rank: width of the vector that queries are made of; None where they are made of the input.
    """

    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    q_rank: int | None = None


@dataclass(frozen=True)
class Transformer:
    """The shape of a decoder-only transformer.

    A block with experts stands for all blocks where a property is of one block. Norms beyond two in
    a block, and biases of single linears, are not counted: together less than a thousandth.

    Args:
        num_layers: L, blocks of attention and MLP.
        hidden_size: h.
        num_heads: a, of queries.
        ffn_size: f, what the MLP widens to; the playbook has 4h.
        vocab_size: v.
        num_kv_heads: heads of keys and values; None for as many as of queries.
        gated: the MLP has a gate (GLU): three matrices of h*f instead of two.
        bias: linears and norms have biases.
        tied: the output projection is the embedding.
        max_positions: learned position embeddings; 0 for rotary ones.
        dropout: training drops out, whose masks and outputs are kept for the backward pass.
        head_dim: d, width of a head; None for h/a.
        experts: what some or all blocks have in place of the MLP.
        latent: how queries, keys and values are made, if not of the block's input.

    Raises:
        ValueError: heads that do not divide h, or heads of keys that do not divide those of
            queries.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_size: int
    vocab_size: int
    num_kv_heads: int | None = None
    gated: bool = False
    bias: bool = False
    tied: bool = False
    max_positions: int = 0
    dropout: bool = False
    head_dim: int | None = None
    experts: Experts | None = None
    latent: LatentAttention | None = None

    def __post_init__(self) -> None:
        if self.head_dim is None and self.latent is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"{self.num_heads} heads do not divide a hidden size of {self.hidden_size}, "
                "and no width of a head is given"
            )
        if self.num_heads % self._kv_heads:
            raise ValueError(
                f"{self._kv_heads} heads of keys do not divide {self.num_heads} of queries"
            )

    def over(self, tp: int) -> Transformer:
        """This model as `tp` tensor-parallel ranks hold it, all together.

        Each rank has as many heads. Where there are fewer heads of keys and values than ranks, they
        are replicated, so that each rank has one.

        Raises:
            ValueError: the heads cannot be spread so.
        """
        if self.num_heads % tp:
            raise ValueError(f"tp must divide the {self.num_heads} attention heads, got {tp}")
        if self._kv_heads % tp and tp % self._kv_heads:
            raise ValueError(
                f"tp must divide the {self._kv_heads} heads of keys and values, or be a multiple "
                f"of them, got {tp}"
            )
        return dataclasses.replace(self, num_kv_heads=max(self._kv_heads, tp))

    def blocks(self, num_layers: int) -> list[tuple[Transformer, int]]:
        """The largest `num_layers` blocks by kind: with experts, and with a dense MLP.

        Each is a model all of whose blocks are of that kind, and how many of them there are.
        """
        if self.experts is None:
            return [(self, num_layers)]
        expert_layers = self.experts.num_layers
        sparse = num_layers if expert_layers is None else min(num_layers, expert_layers)
        return [(self, sparse), (dataclasses.replace(self, experts=None), num_layers - sparse)]

    @property
    def q_size(self) -> int:
        """Width of the queries: h where heads are h/a wide."""
        if self.latent:
            return self.num_heads * (self.latent.nope_dim + self.latent.rope_dim)
        return self.num_heads * self._head_dim

    @property
    def kv_size(self) -> int:
        """Width of the keys, and of the values: h without grouped queries."""
        return self._head_dim * self._kv_heads

    @property
    def kv_sizes(self) -> int:
        """Widths of keys and values, together."""
        return self.q_size + self.attention_size if self.latent else 2 * self.kv_size

    @property
    def latent_size(self) -> int:
        """Widths of the narrow vectors of latent attention, before and after their norms."""
        return 2 * (self.latent.kv_rank + (self.latent.q_rank or 0)) if self.latent else 0

    @property
    def attention_size(self) -> int:
        """Width of what attention gives to its output projection: h where heads are h/a wide."""
        return self.num_heads * self.latent.v_dim if self.latent else self.q_size

    @property
    def qkv_params(self) -> int:
        """Weights that make queries, keys and values: h*h + 2h*kv where heads are h/a wide."""
        h, latent = self.hidden_size, self.latent
        if latent is None:
            return h * (self.q_size + 2 * self.kv_size)
        queries = latent.q_rank * (h + self.q_size) if latent.q_rank else h * self.q_size
        widened = self.num_heads * (latent.nope_dim + latent.v_dim)
        return queries + h * (latent.kv_rank + latent.rope_dim) + latent.kv_rank * widened

    @property
    def active_ffn_size(self) -> int:
        """What the MLP, or the experts that a token passes, widen to: f without experts."""
        if self.experts is None:
            return self.ffn_size
        return self.experts.per_token * self.experts.ffn_size + self.experts.shared_ffn_size

    @property
    def linear_params_per_layer(self) -> int:
        """Weights that one block multiplies a token with.

        Attention has 2h*h (queries, output) and 2h*kv (keys, values), the MLP 2h*f, or 3h*f with a
        gate. With f = 4h and no grouped queries these are the playbook's 12h², or 16h² with a gate
        (Tazi et al., The Ultra-Scale Playbook, Hugging Face 2025, appendix A2). Corrected: gated
        models do not have f = 4h, so 16h² is no model's: Llama 3.1 8B has f = 3.5h and grouped
        queries, which makes 13h². The router of experts has h for each.
        """
        h = self.hidden_size
        router = h * self.experts.count if self.experts else 0
        return self.qkv_params + h * self.attention_size + router + self._mlp(self.active_ffn_size)

    @property
    def params_per_layer(self) -> int:
        """All parameters of one block: weights, biases, norms, and all experts.

        With biases, f = 4h and no gate these are 12h² + 13h, as in the playbook's section Memory
        for weights, gradients, and optimizer states.
        """
        h = self.hidden_size
        biases = 0
        if self.bias:
            mlp = (2 if self.gated else 1) * self.active_ffn_size + h
            biases = self.q_size + 2 * self.kv_size + h + mlp
        norms = 2 * self._norm_params
        return self.linear_params_per_layer + self.idle_params_per_layer + biases + norms

    @property
    def idle_params_per_layer(self) -> int:
        """Weights of the experts that a token does not pass."""
        if self.experts is None:
            return 0
        return self._mlp((self.experts.count - self.experts.per_token) * self.experts.ffn_size)

    @property
    def embedding_params(self) -> int:
        """The parameters of tokens (v*h) and learned positions."""
        return (self.vocab_size + self.max_positions) * self.hidden_size

    @property
    def head_params(self) -> int:
        """The parameters of the final norm and of an output projection that is not tied."""
        return self._norm_params + (0 if self.tied else self.vocab_size * self.hidden_size)

    @property
    def num_params(self) -> int:
        """All parameters.

        The playbook's  h*v + L (12h² + 13h) + 2h  is the case of a tied output projection, biases,
        f = 4h and rotary positions.
        """
        blocks = sum(count * kind.params_per_layer for kind, count in self.blocks(self.num_layers))
        return self.embedding_params + blocks + self.head_params

    @property
    def active_params(self) -> int:
        """All parameters but those of the experts that a token does not pass."""
        blocks = self.blocks(self.num_layers)
        return self.num_params - sum(count * kind.idle_params_per_layer for kind, count in blocks)

    @property
    def linear_params(self) -> int:
        """Weights that a token is multiplied with: all blocks' and the output projection's.

        This is what "num_params" has to count in  2 * num_tokens * num_params  operations. An
        embedding is looked up and costs none; a tied one is multiplied with at the output.
        """
        blocks = self.blocks(self.num_layers)
        layers = sum(count * kind.linear_params_per_layer for kind, count in blocks)
        return layers + self.vocab_size * self.hidden_size

    def forward_flops(self, num_tokens: int, seq_len: int) -> int:
        """Floating-point operations of a forward pass.

        Two (multiply, add) per token and weight; and per token and layer 4*seq_len*h in attention,
        for its scores and for the sum of values, as PaLM counts it (Chowdhery et al.,
        arXiv:2204.02311, appendix B). Corrected: the playbook (A2) leaves attention out and counts
        embeddings in. Kernels that skip what the causal mask hides do half of the attention. Where
        heads are not h/a wide, 4h is 2a times the widths of a head's key and value.
        """
        attention = self._attention_flops(seq_len) * self.num_layers
        return num_tokens * (2 * self.linear_params + attention)

    def backward_flops(self, num_tokens: int, seq_len: int) -> int:
        """Twice the forward pass: of Y = XW both dX = dY Wᵀ and dW = Xᵀ dY are as large as Y."""
        return 2 * self.forward_flops(num_tokens, seq_len)

    def layer_forward_flops(self, num_tokens: int, seq_len: int) -> int:
        """What `forward_flops` counts in one block."""
        return num_tokens * (2 * self.linear_params_per_layer + self._attention_flops(seq_len))

    def _attention_flops(self, seq_len: int) -> int:
        return 2 * seq_len * (self.q_size + self.attention_size)

    def _mlp(self, ffn_size: int) -> int:
        return (3 if self.gated else 2) * self.hidden_size * ffn_size

    @property
    def _head_dim(self) -> int:
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def _kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def _norm_params(self) -> int:
        return (2 if self.bias else 1) * self.hidden_size


def _gpt2(num_layers: int, hidden_size: int, num_heads: int) -> Transformer:
    return Transformer(
        num_layers,
        hidden_size,
        num_heads,
        ffn_size=4 * hidden_size,
        vocab_size=50257,
        bias=True,
        tied=True,
        max_positions=1024,
        dropout=True,
    )


def _llama3(num_layers: int, hidden_size: int, num_heads: int, ffn_size: int) -> Transformer:
    return Transformer(
        num_layers, hidden_size, num_heads, ffn_size, 128256, num_kv_heads=8, gated=True
    )


MODELS = {
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "llama-3.1-8b": _llama3(32, 4096, 32, 14336),
    "llama-3.1-70b": _llama3(80, 8192, 64, 28672),
    "llama-3.1-405b": _llama3(126, 16384, 128, 53248),
}
