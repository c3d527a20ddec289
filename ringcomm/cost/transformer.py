"""How many parameters a decoder-only transformer has, and how many operations it takes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Transformer:
    """The shape of a decoder-only transformer.

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

    @property
    def kv_size(self) -> int:
        """Width of the keys, and of the values: h without grouped queries."""
        return self.hidden_size // self.num_heads * (self.num_kv_heads or self.num_heads)

    @property
    def linear_params_per_layer(self) -> int:
        """Weights that one block multiplies with.

        Attention has 2h*h (queries, output) and 2h*kv (keys, values), the MLP 2h*f, or 3h*f with a
        gate. With f = 4h and no grouped queries these are the playbook's 12h², or 16h² with a gate
        (Tazi et al., The Ultra-Scale Playbook, Hugging Face 2025, appendix A2). Corrected: gated
        models do not have f = 4h, so 16h² is no model's: Llama 3.1 8B has f = 3.5h and grouped
        queries, which makes 13h².
        """
        h = self.hidden_size
        return 2 * h * h + 2 * h * self.kv_size + (3 if self.gated else 2) * h * self.ffn_size

    @property
    def params_per_layer(self) -> int:
        """All parameters of one block: weights, biases, norms.

        With biases, f = 4h and no gate these are 12h² + 13h, as in the playbook's section Memory
        for weights, gradients, and optimizer states.
        """
        h = self.hidden_size
        biases = 0
        if self.bias:
            biases = 2 * h + 2 * self.kv_size + (2 if self.gated else 1) * self.ffn_size + h
        return self.linear_params_per_layer + biases + 2 * self._norm_params

    @property
    def embedding_params(self) -> int:
        """Of tokens (v*h) and learned positions."""
        return (self.vocab_size + self.max_positions) * self.hidden_size

    @property
    def head_params(self) -> int:
        """Of the final norm and of an output projection that is not tied."""
        return self._norm_params + (0 if self.tied else self.vocab_size * self.hidden_size)

    @property
    def num_params(self) -> int:
        """All parameters.

        The playbook's  h*v + L (12h² + 13h) + 2h  is the case of a tied output projection, biases,
        f = 4h and rotary positions.
        """
        return self.embedding_params + self.num_layers * self.params_per_layer + self.head_params

    @property
    def linear_params(self) -> int:
        """Weights that a token is multiplied with: all blocks' and the output projection's.

        This is what "num_params" has to count in  2 * num_tokens * num_params  operations. An
        embedding is looked up and costs none; a tied one is multiplied with at the output.
        """
        return self.num_layers * self.linear_params_per_layer + self.vocab_size * self.hidden_size

    def forward_flops(self, num_tokens: int, seq_len: int) -> int:
        """Floating-point operations of a forward pass.

        Two (multiply, add) per token and weight; and per token and layer 4*seq_len*h in attention,
        for its scores and for the sum of values, as PaLM counts it (Chowdhery et al.,
        arXiv:2204.02311, appendix B). Corrected: the playbook (A2) leaves attention out and counts
        embeddings in. Kernels that skip what the causal mask hides do half of the attention.
        """
        attention = 4 * seq_len * self.hidden_size * self.num_layers
        return num_tokens * (2 * self.linear_params + attention)

    def backward_flops(self, num_tokens: int, seq_len: int) -> int:
        """Twice the forward pass: of Y = XW both dX = dY Wᵀ and dW = Xᵀ dY are as large as Y."""
        return 2 * self.forward_flops(num_tokens, seq_len)

    def layer_forward_flops(self, num_tokens: int, seq_len: int) -> int:
        """What `forward_flops` counts in one block."""
        return num_tokens * (2 * self.linear_params_per_layer + 4 * seq_len * self.hidden_size)

    @property
    def _norm_params(self) -> int:
        return (2 if self.bias else 1) * self.hidden_size


def from_config(path: Path) -> Transformer:
    """Reads the config.json of a Hugging Face model with Llama's names (Mistral, Qwen, ...).

    Raises:
        ValueError: the file is no JSON object or lacks one of the sizes.
    """
    try:
        config: dict[str, Any] = json.loads(path.read_text())
        return Transformer(
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            num_heads=config["num_attention_heads"],
            ffn_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
            num_kv_heads=config.get("num_key_value_heads"),
            gated=True,
            tied=config.get("tie_word_embeddings", False),
        )
    except KeyError as missing:
        raise ValueError(
            f"{path} has no {missing}, which the models of Llama's kind have"
        ) from None
    except (json.JSONDecodeError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no model's config.json: {error}") from None


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
