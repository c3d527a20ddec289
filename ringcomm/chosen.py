"""What a group chose when it was made: hosts, memory, links, tuning, and how its calls go.

RINGCOMM_DEBUG=info and `python -m ringcomm status` print it, and `ringcomm.status()` has it. The
core provides it (csrc/core/policy.cpp); nothing here knows a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from ringcomm.topology import Host
from ringcomm.units import readable_nbytes, readable_ranks

_MOST_HOSTS = 8  # that are listed


@dataclass(frozen=True)
class SizeClass:
    """Calls of a collective on CPU tensors, of at most so many bytes, beyond the class before.

    The bytes are those of the larger of a rank's two buffers.

    Attributes:
        collective: such as "all_reduce".
        dtype: "float32", for elements of 4 bytes and more, or "bfloat16", for smaller ones.
        most_nbytes: None if there is no limit.
        path: "with the call", which sends small tensors without an algorithm, or "plan".
        algorithm: whose plan it is; "" without one.
        zero_copy_from: of so many bytes on, tensors that lie in shared memory on all ranks are not
            copied, and the call takes neither path; None if there is no such limit.
    """

    collective: str
    dtype: str
    most_nbytes: int | None
    path: str
    algorithm: str
    zero_copy_from: int | None

    @property
    def up_to(self) -> str:
        """Such as 64 KiB."""
        return "any size" if self.most_nbytes is None else readable_nbytes(self.most_nbytes)

    @property
    def copies_up_to(self) -> str:
        """Where zero copy begins, such as 16 KiB; "" where it does not."""
        return "" if self.zero_copy_from is None else readable_nbytes(self.zero_copy_from)


@dataclass(frozen=True)
class Chosen:
    """What a group chose when it was made.

    Attributes:
        hosts: which ranks share a host; of a group that is being made, none.
        memory: what they share there: "memfd" or "/dev/shm".
        links: what carries bytes between hosts: "ucx" or "gloo"; "" if there is one host.
        across: the network by which groups that span hosts choose, as RINGCOMM_ACROSS has it; "" if
            there is one host.
        tuned_by: the file of the tuning that the group goes by; "" if it goes by the defaults.
        reproducible: what the bits of sums depend on, as `ringcomm.Options` has it.
        size_classes: how calls go: by collective and dtype, ascending.
    """

    hosts: tuple[Host, ...]
    memory: str
    links: str
    across: str
    tuned_by: str
    reproducible: str
    size_classes: tuple[SizeClass, ...]

    def facts(self) -> list[tuple[str, str]]:
        """Names and what is chosen for them, but for the size classes."""
        listed = [f"{host.name} ({readable_ranks(host.ranks)})" for host in self.hosts]
        if len(listed) > _MOST_HOSTS:
            listed[_MOST_HOSTS:] = [f"{len(listed) - _MOST_HOSTS} more"]
        between = f"{self.links}, network {self.across}" if self.across else "none (one host)"
        defaults = "by the network" if self.across else "defaults"
        return [
            ("hosts" if self.across else "host", ", ".join(listed)),
            ("shared memory", self.memory),
            ("between hosts", between),
            ("tuning", self.tuned_by or defaults),
            ("reproducible", self.reproducible),
        ]

    def table(self) -> Iterator[tuple[str, ...]]:
        """The size classes, with a row of headings; dtypes that go alike are one."""
        yield "collective", "dtype", "up to", "path", "algorithm", "zero copy from"
        for collective, found in groupby(self.size_classes, lambda one: one.collective):
            by_dtype = {
                dtype: [_cells(each) for each in classes]
                for dtype, classes in groupby(found, lambda one: one.dtype)
            }
            first = next(iter(by_dtype.values()))
            if all(rows == first for rows in by_dtype.values()):
                by_dtype = {"any": first}
            for dtype, rows in by_dtype.items():
                begin = collective, dtype
                for row in rows:
                    yield *begin, *row
                    begin = "", ""

    def lines(self) -> list[str]:
        """All of it, for people."""
        facts = self.facts()
        width = max(len(name) for name, _ in facts)
        lines = [f"{name:{width}}  {what}" for name, what in facts]
        rows = list(self.table())
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
        return lines

    def summary(self) -> list[str]:
        """A line of the facts, and one of how all-reduces go."""
        lines = ["; ".join(f"{name}: {what}" for name, what in self.facts())]
        shown = [
            one
            for one in self.size_classes
            if (one.collective, one.dtype) == ("all_reduce", "float32")
        ]
        if shown:
            goes = [f"up to {one.up_to} {one.algorithm or one.path}" for one in shown[:-1]]
            goes.append(f"{'then ' if goes else ''}{shown[-1].algorithm or shown[-1].path}")
            if begin := shown[-1].copies_up_to:
                goes.append(f"zero copy from {begin} if tensors are shared")
            lines.append(f"all_reduce of float32: {', '.join(goes)}")
        return lines


def _cells(one: SizeClass) -> tuple[str, ...]:
    return one.up_to, one.path, one.algorithm, one.copies_up_to
