"""An embedding whose table is divided over the ranks of a group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn import functional

from ringcomm.parallel._shares import uneven_share
from ringcomm.parallel.regions import reduce_from_group


class VocabParallelEmbedding(nn.Module):
    """An embedding of which each rank holds a contiguous part of the rows.

    Each rank looks up the tokens whose rows it holds and has zeros for the others; the sum over the
    ranks is the result, to the bit: every addend but one is zero. The vocabulary may be of any
    size, the first ranks hold one row more if it cannot be divided evenly.

    Args:
        embedding: the whole embedding, the same on all ranks; this rank's rows of it are copied.
        group: the default group if not given.

    Raises:
        ValueError: there are more ranks than rows, or the embedding is of a kind that is not
            supported: with max_norm, scale_grad_by_freq or sparse.
    """

    def __init__(self, embedding: nn.Embedding, group: ProcessGroup | None = None) -> None:
        super().__init__()
        for option in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(embedding, option):
                raise ValueError(
                    f"an embedding with {option} cannot be divided; got "
                    f"{option}={getattr(embedding, option)!r}"
                )
        self.num_embeddings = embedding.num_embeddings
        if self.num_embeddings < dist.get_world_size(group):
            raise ValueError(
                f"an embedding of {self.num_embeddings} rows cannot be divided over "
                f"{dist.get_world_size(group)} ranks; each needs one row at least"
            )
        self.rows = uneven_share(self.num_embeddings, group)
        self.weight = nn.Parameter(
            embedding.weight.detach()[self.rows].clone(), embedding.weight.requires_grad
        )
        padding = embedding.padding_idx
        ours = padding is not None and self.rows.start <= padding < self.rows.stop
        self.padding_idx = padding - self.rows.start if padding is not None and ours else None
        self.group = group

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens' rows.

        Args:
            tokens: any shape, int32 or int64, the same on all ranks.

        Returns:
            (*tokens.shape, embedding_dim), the same on all ranks.

        Raises:
            IndexError: a token is outside of the vocabulary; on every rank.
        """
        before = (tokens >= 0) & (tokens < self.rows.start)
        after = (tokens >= self.rows.stop) & (tokens < self.num_embeddings)
        elsewhere = before | after
        # A token outside of the vocabulary is outside of every rank's rows, and lookup refuses it.
        local = (tokens - self.rows.start).masked_fill(elsewhere, 0)
        found = functional.embedding(local, self.weight, self.padding_idx)
        return reduce_from_group(found.masked_fill(elsewhere.unsqueeze(-1), 0), self.group)
