"""Figures of running groups for Prometheus, read from the groups' memory at each scrape.

They cost the groups nothing, as for `ringcomm.status`. This needs the package prometheus-client.

    >>> import prometheus_client, ringcomm.metrics
    >>> prometheus_client.REGISTRY.register(ringcomm.metrics.GroupCollector())

Each figure of a rank has the labels "job" (its command), "launcher" (a process number), "group",
"rank" (in the default group) and "host"; a histogram has "collective" as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ringcomm.live import CollectiveTimes, Durations, GroupStatus, RankStatus, status

_OF_GROUP = ("job", "launcher", "group")
_OF_RANK = (*_OF_GROUP, "rank", "host")


class GroupCollector(Collector):
    """The ranks of groups that are on this host.

    | figure | what it is |
    |---|---|
    | `ringcomm_collectives_total` | collectives done on the host |
    | `ringcomm_device_collectives_total` | collectives done on the rank's GPU |
    | `ringcomm_collective_bytes_total` | bytes of the rank's tensors in collectives on the host |
    | `ringcomm_collective_wait_seconds` | waits for ranks that came later; a histogram |
    | `ringcomm_collective_transfer_seconds` | the time from then on, if not small; a histogram |
    | `ringcomm_waiting_seconds` | how long the rank has waited in its call; 0 if it does not wait |
    | `ringcomm_memory_bytes` | shared memory that the rank has made for the group |
    | `ringcomm_device_memory_bytes` | memory of its GPU that it holds for the group |
    | `ringcomm_group_broken` | of a group: 1 if it has failed, else 0 |

    Args:
        groups: says which groups there are; those of this process if not given.
            `ringcomm.live.running` finds those of all of this user's processes on the host.
    """

    def __init__(self, groups: Callable[[], list[GroupStatus]] = status) -> None:
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now."""
        groups = _named_apart(self._groups())
        ranks = [
            ((*labels, str(rank.global_rank), rank.host), rank)
            for labels, group in groups
            for rank in group.ranks
            if rank.rank in group.here
        ]
        for name, text, value in _FIGURES:
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(name, text, labels=_OF_RANK)
            for labels, rank in ranks:
                metric.add_metric(labels, value(rank))
            yield metric
        for name, text, durations in _HISTOGRAMS:
            histogram = HistogramMetricFamily(name, text, labels=(*_OF_RANK, "collective"))
            for labels, rank in ranks:
                for times in rank.times:
                    buckets, seconds = _buckets(durations(times))
                    histogram.add_metric((*labels, times.collective), buckets, seconds)
            yield histogram
        broken = GaugeMetricFamily(
            "ringcomm_group_broken", "Whether the group has failed.", labels=_OF_GROUP
        )
        for labels, group in groups:
            broken.add_metric(labels, bool(group.failure))
        yield broken


_FIGURES: tuple[tuple[str, str, Callable[[RankStatus], float]], ...] = (
    (
        "ringcomm_collectives_total",
        "Collectives done on the host.",
        lambda rank: rank.completed,
    ),
    (
        "ringcomm_device_collectives_total",
        "Collectives done on the rank's GPU.",
        lambda rank: rank.completed_on_device,
    ),
    (
        "ringcomm_collective_bytes_total",
        "Bytes of the rank's tensors in collectives on the host.",
        lambda rank: rank.nbytes,
    ),
    (
        "ringcomm_waiting_seconds",
        "How long the rank has waited in the call that it is in.",
        lambda rank: rank.waits,
    ),
    (
        "ringcomm_memory_bytes",
        "Shared memory that the rank has made for the group.",
        lambda rank: rank.held,
    ),
    (
        "ringcomm_device_memory_bytes",
        "Memory of its GPU that the rank holds for the group.",
        lambda rank: rank.held_on_device,
    ),
)


_HISTOGRAMS: tuple[tuple[str, str, Callable[[CollectiveTimes], Durations]], ...] = (
    (
        "ringcomm_collective_wait_seconds",
        "Time in collectives on the host until all ranks had called them.",
        lambda times: times.waited,
    ),
    (
        "ringcomm_collective_transfer_seconds",
        "Time in collectives on the host from then on, except for small ones.",
        lambda times: times.transferred,
    ),
)


def _buckets(durations: Durations) -> tuple[list[tuple[str, float]], float]:
    """As Prometheus wants them: how many took at most so long, and the sum."""
    bounds = [*map(floatToGoString, Durations.BOUNDS), "+Inf"]
    up_to = map(float, itertools.accumulate(durations.counts))
    return list(zip(bounds, up_to, strict=True)), durations.seconds


def _named_apart(groups: Sequence[GroupStatus]) -> list[tuple[tuple[str, ...], GroupStatus]]:
    """Each group with its labels. Groups of a job may have the same name; their figures may not."""
    named: dict[tuple[str, ...], GroupStatus] = {}
    for group in groups:
        name, job = group.name or "without a name", group.job
        labels = (job.command, str(job.launcher), name)
        number = 2
        while labels in named:
            labels = (job.command, str(job.launcher), f"{name} ({number})")
            number += 1
        named[labels] = group
    return list(named.items())
