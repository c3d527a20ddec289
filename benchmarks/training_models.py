"""The models that benchmarks/training.py trains, and their data: nothing is downloaded."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from jobs import DTYPES
from torch import nn

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Text:
    """GPT-2 with this shape. It learns to count: each text goes on from a random token."""

    layers: int = 12
    width: int = 768
    vocabulary: int = 50257
    unit = "tokens"

    def make(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=self.vocabulary,
            n_layer=self.layers,
            n_embd=self.width,
            n_head=self.width // 64,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        return GPT2LMHeadModel(config)

    def batch(self, options: argparse.Namespace, generator: torch.Generator) -> Batch:
        first = torch.randint(256, (options.batch, 1), generator=generator)
        tokens = (first + torch.arange(options.length)) % 256
        return {"input_ids": tokens, "labels": tokens}

    def units(self, options: argparse.Namespace) -> int:
        return options.batch * options.length


@dataclass(frozen=True)
class Images:
    """A vision transformer with this shape. It learns which of two noisy pictures it sees."""

    layers: int = 12
    width: int = 384
    pixels: int = 224
    patch: int = 16
    unit = "images"

    def make(self) -> nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.width // 64,
            intermediate_size=4 * self.width,
            image_size=self.pixels,
            patch_size=self.patch,
            num_labels=10,
        )
        return ViTForImageClassification(config)

    def batch(self, options: argparse.Namespace, generator: torch.Generator) -> Batch:
        shape = (3, self.pixels, self.pixels)
        pictures = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
        labels = torch.randint(2, (options.batch,), generator=generator)
        noise = torch.randn(options.batch, *shape, generator=generator)
        return {"pixel_values": pictures[labels] + noise, "labels": labels}

    def units(self, options: argparse.Namespace) -> int:
        return options.batch


MODELS: dict[str, Text | Images] = {
    "gpt2-2m": Text(layers=4, width=192, vocabulary=2048),
    "gpt2-124m": Text(),
    "vit-3m": Images(layers=6, width=192, pixels=32, patch=8),
    "vit-22m": Images(),
}


def num_parameters(name: str) -> int:
    with torch.device("meta"):
        return sum(each.numel() for each in MODELS[name].make().parameters())


def make_batch(name: str, options: argparse.Namespace, rank: int, step: int, dtype: str) -> Batch:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    batch = MODELS[name].batch(options, generator)
    return {
        key: each.to(DTYPES[dtype]) if each.is_floating_point() else each
        for key, each in batch.items()
    }
