"""Reads the shape of a transformer from the config.json of a Hugging Face model."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringcomm.cost.transformer import Experts, LatentAttention, Transformer

Config = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """How the models of a model_type differ from Llama's, and what their configurations leave out.

    Args:
        gated, bias: as `Transformer` has them.
        tied: whether the output projection is the embedding, where the configuration is silent.
        ffn_ratio: the MLP is so many times as wide as the model, where the configuration is silent;
            0 for models whose configurations always say it.
        positions: the field that counts learned position embeddings.
        spare_positions: those beyond this count.
        multi_query: all queries share one head of keys and values, where the configuration is
            silent.
        dropout: the field with the probability of dropout.
        experts: the field that counts the experts of a block.
        expert_ffn: the field that says how wide an expert is.
        latent: attention is latent.
    """

    gated: bool = True
    bias: bool = False
    tied: bool = False
    ffn_ratio: int = 0
    positions: str | None = None
    spare_positions: int = 0
    multi_query: bool = False
    dropout: str | None = None
    experts: str | None = None
    expert_ffn: str = "moe_intermediate_size"
    latent: bool = False


_LLAMA = Family()
_TIED = Family(tied=True)
_MIXTRAL = Family(experts="num_local_experts", expert_ffn="intermediate_size")
_QWEN_MOE = Family(experts="num_experts")
_DEEPSEEK = Family(experts="n_routed_experts", latent=True)
_GPT2 = Family(
    gated=False, bias=True, tied=True, ffn_ratio=4, positions="n_positions", dropout="resid_pdrop"
)

FAMILIES = {
    "bloom": Family(gated=False, bias=True, tied=True, ffn_ratio=4, dropout="hidden_dropout"),
    "cohere": _TIED,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "falcon": Family(
        gated=False, tied=True, ffn_ratio=4, multi_query=True, dropout="hidden_dropout"
    ),
    "gemma": _TIED,
    "gemma2": _TIED,
    "gemma3_text": _TIED,
    "glm4": _LLAMA,
    "glm4_moe": Family(experts="n_routed_experts"),
    "gpt2": _GPT2,
    "gpt_bigcode": replace(_GPT2, multi_query=True),
    "gpt_neo": replace(_GPT2, positions="max_position_embeddings", dropout="resid_dropout"),
    "gpt_neox": Family(gated=False, bias=True, dropout="hidden_dropout"),
    "gpt_oss": _MIXTRAL,
    "gptj": Family(gated=False, bias=True, ffn_ratio=4, dropout="resid_pdrop"),
    "granite": _LLAMA,
    "granitemoe": _MIXTRAL,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _MIXTRAL,
    "nemotron": Family(gated=False),
    "olmo": _LLAMA,
    "olmo2": _LLAMA,
    "olmoe": Family(experts="num_experts", expert_ffn="intermediate_size"),
    "opt": Family(
        gated=False,
        bias=True,
        tied=True,
        positions="max_position_embeddings",
        spare_positions=2,
        dropout="dropout",
    ),
    "phi": Family(gated=False, bias=True, dropout="resid_pdrop"),
    "phi3": _LLAMA,
    "phimoe": _MIXTRAL,
    "qwen2": _LLAMA,
    "qwen2_moe": _QWEN_MOE,
    "qwen3": _LLAMA,
    "qwen3_moe": _QWEN_MOE,
    "smollm3": _TIED,
    "stablelm": _LLAMA,
    "starcoder2": Family(gated=False, bias=True, tied=True, dropout="residual_dropout"),
}

# Each size has one meaning in all families, so the first of its names that is there counts.
_MOST = 10_000_000  # more than any size of a known model
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "n_embed")
_HEADS = ("num_attention_heads", "n_head", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
# What changes the shape of a model in families that have no such thing.
_PARTS = ("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank")


def from_config(path: Path) -> Transformer:
    """Reads the config.json of a Hugging Face model, by its model_type.

    Predictors of further tokens (MTP) and adapters are not counted.

    Raises:
        ValueError: the file is no JSON object, its model_type is not known, it lacks a size, has
            one that is no integer within bounds, or sizes that do not go together.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no model's config.json: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is no model's config.json: it is no JSON object")
    try:
        return _transformer(config)
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None


def _transformer(config: Config) -> Transformer:
    family = _family(config)
    num_layers, hidden = _size(config, *_LAYERS), _size(config, *_HIDDEN)
    positions = family.positions
    if config.get("word_embed_proj_dim", hidden) != hidden:
        raise ValueError("has embeddings that are not as wide as its blocks, which is not counted")
    return Transformer(
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=_size(config, *_HEADS),
        ffn_size=_optional(config, *_FFN) or family.ffn_ratio * hidden or _size(config, *_FFN),
        vocab_size=_size(config, "vocab_size"),
        num_kv_heads=None if family.latent else _kv_heads(config, family),
        gated=family.gated,
        bias=family.bias,
        tied=_flag(config, "tie_word_embeddings", family.tied),
        max_positions=_size(config, positions) + family.spare_positions if positions else 0,
        dropout=bool(family.dropout and config.get(family.dropout)),
        head_dim=_optional(config, "head_dim"),
        experts=_experts(config, family, num_layers) if family.experts else None,
        latent=_latent(config) if family.latent else None,
    )


def _family(config: Config) -> Family:
    if "model_type" not in config:
        raise ValueError(f"has no 'model_type'; known are {', '.join(FAMILIES)}")
    name = config["model_type"]
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(
            f"has the model_type {name!r}, which is not known; known are {', '.join(FAMILIES)}"
        )
    family = FAMILIES[name]
    known = {family.experts, "kv_lora_rank" if family.latent else None}
    for part in _PARTS:
        if config.get(part) and part not in known:
            raise ValueError(f"has {part!r}, which models of the model_type {name!r} do not have")
    return family


def _kv_heads(config: Config, family: Family) -> int | None:
    several = _flag(config, "new_decoder_architecture", False)
    if _flag(config, "multi_query", family.multi_query) and not several:
        return 1
    return _optional(config, *_KV_HEADS)


def _experts(config: Config, family: Family, num_layers: int) -> Experts:
    ffn_size = _size(config, family.expert_ffn)
    shared = _optional(config, "n_shared_experts", least=0) or 0
    shared_ffn_size = _optional(config, "shared_expert_intermediate_size", least=0) or 0
    return Experts(
        count=_size(config, str(family.experts)),
        per_token=_size(config, "num_experts_per_tok"),
        ffn_size=ffn_size,
        shared_ffn_size=shared * ffn_size + shared_ffn_size,
        num_layers=_expert_layers(config, num_layers),
    )


def _expert_layers(config: Config, num_layers: int) -> int:
    """Blocks with experts: DeepSeek counts every nth from 0, Qwen from 1; both can begin dense."""
    dense = _optional(config, "first_k_dense_replace", least=0) or 0
    from_0 = _optional(config, "moe_layer_freq") or 1
    from_1 = _optional(config, "decoder_sparse_step") or 1
    without = config.get("mlp_only_layers") or []
    if not isinstance(without, list):
        raise ValueError(f"must have a list as 'mlp_only_layers', got {without!r}")
    layers = range(dense, num_layers)
    return sum(i % from_0 == 0 and (i + 1) % from_1 == 0 and i not in without for i in layers)


def _latent(config: Config) -> LatentAttention:
    if "q_lora_rank" not in config:
        raise ValueError("has no 'q_lora_rank', which may be null")
    return LatentAttention(
        kv_rank=_size(config, "kv_lora_rank"),
        nope_dim=_size(config, "qk_nope_head_dim"),
        rope_dim=_size(config, "qk_rope_head_dim"),
        v_dim=_size(config, "v_head_dim"),
        q_rank=_optional(config, "q_lora_rank"),
    )


def _size(config: Config, *names: str, least: int = 1) -> int:
    """The field under the first of its names that is there."""
    for name in names:
        if name in config:
            value = config[name]
            if type(value) is not int or not least <= value <= _MOST:  # True is an int, too
                raise ValueError(
                    f"must have an integer from {least} to {_MOST} as {name!r}, got {value!r}"
                )
            return value
    others = f" (or {', '.join(map(repr, names[1:]))})" if names[1:] else ""
    raise ValueError(f"has no {names[0]!r}{others}")


def _optional(config: Config, *names: str, least: int = 1) -> int | None:
    """The same, or None where it is absent or null, as transformers takes it."""
    there = [name for name in names if config.get(name) is not None]
    return _size(config, *there, least=least) if there else None


def _flag(config: Config, name: str, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"must have true or false as {name!r}, got {value!r}")
    return value
