"""The pictures of plans, against plans carried out on numbers; the page in a real browser."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import started_browser
from plan_simulator import Simulator

import ringcomm
from ringcomm.cli import main
from ringcomm.explain import drawing
from ringcomm.explain.contributions import follow
from ringcomm.explain.drawing import draw
from ringcomm.explain.page import page
from ringcomm.plan import Plan, Plans
from ringcomm.plan.algorithms import ALGORITHMS


def held(plans: Plans, num_steps: int, initial: list[list[int]]) -> list[list[set[int]]]:
    """Whose data each rank has in each chunk after some steps, [rank][chunk].

    Rank r's data is the number 2^r, so that the bits of a sum tell what was added, and a rank that
    counts twice shows.
    """
    first_steps = [Plan(plan.num_chunks, list(plan.steps)[:num_steps]) for plan in plans]
    data = [np.array(row, dtype=np.int64).reshape(-1, 1) for row in initial]
    Simulator(first_steps, data, random.Random(0), buffered=True).run()
    ranks = range(plans.world_size)
    return [[{r for r in ranks if int(cell[0]) >> r & 1} for cell in mine] for mine in data]


def own(plans: Plans) -> list[list[int]]:
    return [[1 << rank] * plans.num_chunks for rank in range(plans.world_size)]


@pytest.mark.parametrize("algorithm", ALGORITHMS["all_reduce"])
@pytest.mark.parametrize("world_size", [1, 2, 5, 8])
def test_contributions_are_those_of_the_plan(algorithm: str, world_size: int) -> None:
    arguments = {"world_size": world_size}
    if ALGORITHMS["all_reduce"][algorithm].two_level:
        arguments["ranks_per_host"] = (
            [1] + [2] * (world_size // 2) if world_size % 2 else world_size
        )
    plans = ringcomm.plan.all_reduce(algorithm, **arguments)
    history = follow(plans)
    assert len(history.cells) == plans.num_steps + 1
    assert list(plans.phases) == history.phases
    for step, cells in enumerate(history.cells):
        expected = held(plans, step, own(plans))
        assert cells == [[sum(1 << r for r in cell) for cell in row] for row in expected]
    assert all(row == history.complete for row in history.cells[-1])


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        (collective, algorithm)
        for collective, names in ALGORITHMS.items()
        for algorithm, properties in names.items()
        if collective not in ("all_reduce", "barrier") and not properties.two_level
    ],
)
@pytest.mark.parametrize("world_size", [4, 7])
def test_the_promised_chunks_are_complete(collective: str, algorithm: str, world_size: int) -> None:
    plans = getattr(ringcomm.plan, collective)(algorithm, world_size=world_size)
    history = follow(plans)
    per_rank = plans.num_chunks // world_size
    for rank in range(world_size):
        promised = range(plans.num_chunks)
        if collective in ("reduce", "gather") and rank != 0:
            continue
        if collective in ("reduce_scatter", "scatter"):
            promised = range(rank * per_rank, (rank + 1) * per_rank)
        if collective == "all_to_all":
            promised = range(rank, plans.num_chunks, world_size)
        for chunk in promised:
            assert history.cells[-1][rank][chunk] == history.complete[chunk]


def test_page_stands_alone() -> None:
    text = page(ringcomm.plan.all_reduce(world_size=3))
    assert "@" not in text.replace("@media", "") and "http:" not in text.replace(
        "http://www.w3.org/2000/svg", ""
    )
    assert not any(word in text for word in ("src=", "href=", "https:", "@import", "url(h"))


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    yield from started_browser()


class Page:
    """What the browser shows."""

    def __init__(self, browser: object, plans: Plans, directory: Path) -> None:
        file = directory / "plan.html"
        file.write_text(page(plans), encoding="utf-8")
        self.browser = browser
        self.browser.get(file.as_uri())

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()

    def wait_for_step(self, step: int) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 30, 0.05).until(
            lambda driver: driver.execute_script("return document.body.dataset.step") == str(step)
        )

    def cells(self) -> list[list[set[int]]]:
        rows = self.browser.execute_script(
            "return [...document.querySelectorAll('tbody tr')].map("
            "row => [...row.cells].slice(1).map(cell => cell.dataset.sources))"
        )
        return [[set(map(int, cell.split("+"))) if cell else set() for cell in row] for row in rows]

    def colors(self, rank: int, chunk: int) -> int:
        """How many coloured stripes the cell has."""
        image = self.browser.execute_script(
            "return getComputedStyle(document.querySelectorAll('tbody tr')[arguments[0]]"
            ".cells[arguments[1] + 1]).backgroundImage",
            rank,
            chunk,
        )
        return image.count("rgb(") // 2  # where it begins and where it ends

    def text(self, selector: str) -> list[str]:
        return self.browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
        )


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_stepping_through_the_page(browser: object, tmp_path: Path, algorithm: str) -> None:
    from selenium.webdriver.common.keys import Keys

    plans = ringcomm.plan.all_reduce(algorithm, world_size=5)
    shown = Page(browser, plans, tmp_path)
    for step in range(plans.num_steps + 1):
        if step > 0:
            shown.press(Keys.ARROW_RIGHT)  # the tokens travel
            shown.wait_for_step(step)
        expected = held(plans, step, own(plans))
        assert shown.cells() == expected
        assert shown.colors(2, 3) == len(expected[2][3])
        complete = len(shown.text("td.complete"))
        assert complete == sum(len(cell) == 5 for row in expected for cell in row)
        sent = [
            (rank, send.peer, send.first_chunk)
            for rank, plan in enumerate(plans)
            for send in (plan.steps[step - 1].sends if step else [])
        ]
        lines = {f"rank {a} → rank {b}: chunk {c}, " for a, b, c in sent}
        assert {
            text.removesuffix("added").removesuffix("copied") for text in shown.text("li")
        } == lines
        coming = [send.first_chunk for plan in plans for send in plan.steps[0].sends]
        tokens = [chunk for _, _, chunk in sent] if step else coming
        assert sorted(shown.text(".token text")) == sorted(map(str, tokens))
        assert len(shown.text(".coming")) == (step == 0)
    (caption,) = shown.text("#caption")
    last = plans.num_steps - 1  # they count from 0
    assert caption == f"step {last}, all-gather ({last + 1} of {last + 1})"

    shown.press(Keys.ARROW_LEFT)
    assert shown.cells() == held(plans, plans.num_steps - 1, own(plans))
    shown.press(Keys.HOME)
    assert shown.cells() == own_sets(plans)
    shown.press(Keys.END)
    assert shown.cells() == held(plans, plans.num_steps, own(plans))
    assert browser.get_log("browser") == []


def own_sets(plans: Plans) -> list[list[set[int]]]:
    return [[{rank}] * plans.num_chunks for rank in range(plans.world_size)]


def test_small_stripes_are_seen(browser: object, tmp_path: Path) -> None:
    """Of 40 ranks each has a place of 2 pixels or more in a cell, apart from the others'."""
    from selenium.webdriver.common.keys import Keys

    plans = ringcomm.plan.all_gather("direct", world_size=40)
    shown = Page(browser, plans, tmp_path)
    sizes = browser.execute_script(
        "const cell = document.querySelectorAll('tbody tr')[3].cells[4];"
        "return [cell.clientWidth / columns, cell.clientHeight / rows, rows * columns]"
    )
    assert sizes[0] >= 2 and sizes[1] >= 2 and sizes[2] >= 40
    assert shown.colors(3, 3) == 1
    assert shown.colors(3, 4) == 0
    shown.press(Keys.END)
    assert shown.cells() == [[{chunk} for chunk in range(40)] for _ in range(40)]


@pytest.mark.parametrize("world_size", [5, 12, 16])
def test_narrow_windows_show_all_chunks(browser: object, tmp_path: Path, world_size: int) -> None:
    size = browser.get_window_size()
    try:
        browser.set_window_size(500, 900)
        Page(browser, ringcomm.plan.all_reduce(world_size=world_size), tmp_path)
        wanted, there = browser.execute_script(
            "const section = document.getElementById('buffers').parentElement;"
            "return [section.scrollWidth, section.clientWidth]"
        )
    finally:
        browser.set_window_size(size["width"], size["height"])
    assert wanted <= there


def test_slider_playing_and_dark_mode(browser: object, tmp_path: Path) -> None:
    plans = ringcomm.plan.all_reduce(world_size=3)
    shown = Page(browser, plans, tmp_path)
    browser.execute_script(
        "const s = document.getElementById('slider'); s.value = 3;"
        "s.dispatchEvent(new Event('input'))"
    )
    assert shown.cells() == held(plans, 3, own(plans))

    browser.execute_script("document.getElementById('speed').value = 2")
    shown.press(" ")
    shown.wait_for_step(4)
    assert shown.cells() == held(plans, 4, own(plans))

    paper = "return getComputedStyle(document.body).backgroundColor"
    light = browser.execute_script(paper)
    shown.press("d")
    dark = browser.execute_script(paper)
    assert sum(map(int, light[4:-1].split(","))) > 600 > 200 > sum(map(int, dark[4:-1].split(",")))


@pytest.mark.parametrize("suffix", ["svg", "gif"])
def test_drawings(tmp_path: Path, suffix: str) -> None:
    plans = ringcomm.plan.all_reduce(world_size=3)
    path = tmp_path / f"ring.{suffix}"
    draw(plans, path)
    if suffix == "gif":
        from PIL import Image

        with Image.open(path) as image:
            frames = []
            for index in range(image.n_frames):
                image.seek(index)
                frames.append(image.convert("RGB").tobytes())
        assert len(frames) == len(set(frames)) == plans.num_steps + 1
    else:
        text = path.read_text()
        assert text.count("<!-- step ") == plans.num_steps
        numbers = re.findall(r"<!-- step (\d+)", text)
        assert numbers == [str(step) for step in range(plans.num_steps)]
        assert text.count("<image ") == plans.num_steps + 1
        assert f"<!-- {drawing.LEGEND} -->" in text
        assert [text.count(f"<!-- rank {rank} -->") for rank in range(4)] == [1, 1, 1, 0]
        (width,) = re.findall(r'<svg .*?width="([\d.]+)pt"', text, re.S)
        assert float(width) < 620  # on a page it is not made smaller


def test_labels_of_arrows_lie_apart() -> None:
    """Also of those that cross in the middle of the ring, and on none of its circles."""
    places = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)]
    labels = [
        drawing._label_place(places[k], places[(k + way) % 4])
        for k in range(4)
        for way in (1, 2, 3)
    ]
    for at, one in enumerate(labels):
        assert all(math.dist(one, other) > 0.12 for other in labels[:at] + labels[at + 1 :])
        assert all(math.dist(one, place) > 0.3 for place in places)
    there, back = [(1.0, 0.0), (0.5, 0.75**0.5)], [(0.5, 0.75**0.5), (1.0, 0.0)]
    assert math.dist(drawing._label_place(*there), drawing._label_place(*back)) > 0.25


def test_a_sheet_is_small(tmp_path: Path) -> None:
    path = tmp_path / "ring.svg"
    draw(ringcomm.plan.all_reduce(world_size=8), path)
    assert path.stat().st_size < 600_000  # with a path for each stripe it is 1.8 MB


def test_stripes_are_the_ranks_in_a_cell() -> None:
    """Of 3 ranks and 2 chunks: rank 1 holds the data of ranks 0 and 2 in chunk 1, and no more."""
    image = drawing._stripes(3, [[0, 0], [0, 0b101], [0, 0]])
    height, width = image.shape[0] // 3, image.shape[1] // 2
    colors = {tuple(round(255 * part) for part in drawing._color(rank, 3)) for rank in (0, 2)}
    cell = image[height : 2 * height, width:].reshape(-1, 3)
    assert {tuple(pixel) for pixel in cell.tolist()} == colors | {(255, 255, 255)}
    image[height : 2 * height, width:] = 255
    assert (image == 255).all()


def test_the_page_has_the_sums() -> None:
    text = page(ringcomm.plan.all_reduce(world_size=3))
    assert "<dt>chunk 1</dt><dd>(rank 0 + rank 2) + rank 1</dd>" in text
    assert text.count("<dd>") == 3
    shared = page(ringcomm.plan.all_reduce("direct", world_size=3))
    assert "<dt>chunks 0-2</dt><dd>rank 0 + rank 1 + rank 2</dd>" in shared
    assert 'id="sums"' not in page(ringcomm.plan.all_gather(world_size=3))


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ("--algorithm direct", "reproducible for every dtype"),
        (
            "--algorithm recursive_doubling",
            "reproducible, but not for floats of 16 and 8 bits: rank 0 ends with (rank 0 + rank 1) "
            "+ (rank 2 + rank 3) in chunk 0, and not with rank 0 + rank 1 + rank 2 + rank 3",
        ),
        (
            "--algorithm chain",
            "not reproducible: rank 0 ends with rank 0 + ((rank 1 + rank 2) + rank 3)",
        ),
        ("--algorithm ring", "not reproducible: rank 0 ends with rank 0 + "),
    ],
)
def test_command_says_whether_sums_are_reproducible(
    arguments: str, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collective = "reduce" if "chain" in arguments else "all_reduce"
    what = ["explain", collective, "--world-size", "4", *arguments.split()]
    assert main([*what, "-o", str(tmp_path / "plan.html")]) == 0
    *sums, said, written = capsys.readouterr().out.splitlines()
    assert said.startswith(verdict)
    assert written.startswith("wrote ")
    assert [line.split(":")[0] for line in sums] == {
        "direct": ["chunks 0-3"],
        "recursive_doubling": ["chunk 0"],
        "chain": ["chunk 0"],
        "ring": ["chunk 0", "chunk 1", "chunk 2", "chunk 3"],
    }[arguments.split()[1]]


def test_command_shows_few_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--world-size", "40", "-o", str(tmp_path / "plan.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11 and lines[8] == "... and 32 more sums"
    assert all(len(line) < 500 for line in lines)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.html"
    what = ["explain", "broadcast", "--world-size", "4", "--algorithm", "chain", "--root", "2"]
    assert main([*what, "-o", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {path}\n"
    assert "<title>broadcast (chain), 4 ranks, root 2</title>" in path.read_text()


def test_command_takes_hosts_of_different_sizes(tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    what = ["explain", "all_reduce", "--algorithm", "hierarchical", "--world-size", "7"]
    assert main([*what, "--ranks-per-host", "3,2,2", "-o", str(path)]) == 0
    assert "all_reduce (hierarchical), 7 ranks" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algorithm", "tree"], "algorithm of all_reduce must be one of"),
        (["-o", "ring.pdf"], "-o must end in one of .html, .svg, .gif, got ring.pdf"),
        (["--root", "1"], "all_reduce has no root, got 1"),
        (["gather", "--root", "5"], "root must be between 0 and 4, got 5"),
        (["-o", "ring.gif", "--world-size", "17"], "at most 16 ranks and 64 chunks, got 17 ranks"),
        (["all_to_all", "--world-size", "30"], "at most 16384 pairs of rank and chunk; 30 ranks"),
    ],
)
def test_refuses(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
