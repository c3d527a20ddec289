"""Training one network on many ranks: tensor, pipeline and data parallelism.

Everything here is built on torch.distributed's calls and takes a process group of any backend; on
"ring" the ranks of one host exchange through shared memory. `examples/` shows each in use.

Where torch has an implementation that suits you (DistributedDataParallel, fully_shard,
parallelize_module, torch.distributed.pipelining), it runs on "ring" as it is.
"""

from ringcomm.parallel.averager import GradientAverager, average_hook
from ringcomm.parallel.embedding import VocabParallelEmbedding
from ringcomm.parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    column_parallel_linear,
    row_parallel_linear,
)
from ringcomm.parallel.microbatches import Microbatches, microbatch_hook
from ringcomm.parallel.pipeline import Pipeline
from ringcomm.parallel.regions import (
    copy_to_group,
    gather_from_group,
    reduce_from_group,
    scatter_to_group,
)
from ringcomm.parallel.schedules import Action, Schedule, gpipe, one_forward_one_backward
from ringcomm.parallel.timeline import Interval, bubble_fraction, draw, replay

__all__ = [
    "Action",
    "ColumnParallelLinear",
    "GradientAverager",
    "Interval",
    "Microbatches",
    "Pipeline",
    "RowParallelLinear",
    "Schedule",
    "VocabParallelEmbedding",
    "average_hook",
    "bubble_fraction",
    "column_parallel_linear",
    "copy_to_group",
    "draw",
    "gather_from_group",
    "gpipe",
    "microbatch_hook",
    "one_forward_one_backward",
    "reduce_from_group",
    "replay",
    "row_parallel_linear",
    "scatter_to_group",
]
