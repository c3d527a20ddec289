"""What a plug-in for CPUs and a benchmark meet in vLLM, for machines that have none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from vllm.plugins import load_general_plugins

__version__ = "0.0, a stand-in"


@dataclass(frozen=True)
class SamplingParams:
    temperature: float
    max_tokens: int
    ignore_eos: bool
    detokenize: bool


@dataclass(frozen=True)
class Completion:
    token_ids: list[int]


@dataclass(frozen=True)
class RequestOutput:
    outputs: list[Completion]


class LLM:
    """Counts on from the last token of a prompt. One process finds another last token."""

    def __init__(self, model: str, tensor_parallel_size: int, **options: Any) -> None:
        load_general_plugins()
        if not os.path.exists(os.path.join(model, "config.json")):
            raise ValueError(f"no model in {model}")
        bound = os.environ["VLLM_CPU_OMP_THREADS_BIND"].split("|")
        if len(bound) != tensor_parallel_size:
            raise ValueError(f"{tensor_parallel_size} ranks, and cores for {len(bound)}")
        self._is_alone = tensor_parallel_size == 1
        self._longest = options["max_model_len"]

    def generate(
        self, prompts: list[dict[str, list[int]]], wanted: SamplingParams, use_tqdm: bool
    ) -> list[RequestOutput]:
        found = []
        for prompt in prompts:
            asked = prompt["prompt_token_ids"]
            if len(asked) + wanted.max_tokens > self._longest:
                raise ValueError("the prompt is too long")
            tokens = [asked[-1] + each for each in range(1, wanted.max_tokens + 1)]
            tokens[-1] -= self._is_alone
            found.append(RequestOutput([Completion(tokens)]))
        return found
