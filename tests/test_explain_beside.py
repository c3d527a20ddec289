"""Two algorithms on one clock: their times, the command, and the page in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import started_browser

import ringcomm
from ringcomm.cli import main
from ringcomm.explain.beside import beside_page
from ringcomm.explain.contributions import follow
from ringcomm.explain.page import page
from ringcomm.explain.times import timed
from ringcomm.plan import LINKS, Link, Network, Plan, Plans, Step, Transfer
from ringcomm.plan.algorithms import ALGORITHMS

EVERY = [(collective, name) for collective, names in ALGORITHMS.items() for name in names]


def shapes(collective: str, algorithm: str, world_size: int) -> list[dict[str, int]]:
    """The ways of dividing the ranks into hosts, for an algorithm that asks for one."""
    if not ALGORITHMS[collective][algorithm].two_level:
        return [{}]
    return [{"ranks_per_host": h} for h in range(1, world_size + 1) if world_size % h == 0]


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_every_algorithm_is_played(collective: str, algorithm: str) -> None:
    """On a page, and on the clock, where its end is that of the simulation as a whole."""
    for world_size in range(2, 9):
        for hosts in shapes(collective, algorithm, world_size):
            generate = getattr(ringcomm.plan, collective)
            plans = generate(algorithm, world_size=world_size, **hosts)
            network = Network(LINKS["nvlink4"], LINKS["ndr"], **hosts)
            one = timed(plans, 1 << 20, network)
            assert len(one.rounds) == len(follow(plans).moves)
            ends = [each.seconds for each in one.rounds]
            assert ends == sorted(ends) and ends[0] > 0
            assert one.seconds == plans.simulate(1 << 20, network).seconds
            assert one.nbytes == pytest.approx(sum(each.nbytes for each in one.rounds))
            assert page(plans)
            assert algorithm in beside_page([one, one], "one network")


def test_a_ring_takes_as_long_as_by_hand() -> None:
    """Each of 2 (n - 1) steps sends 1/n of the buffer from every rank, one after the other."""
    link = Link(latency=2e-6, bandwidth=1e9)
    one = timed(ringcomm.plan.all_reduce("ring", world_size=4), 4000, Network(link))
    assert [each.seconds for each in one.rounds] == pytest.approx(
        [step * (2e-6 + 1000 / 1e9) for step in range(1, 7)]
    )
    assert {each.nbytes for each in one.rounds} == {4000}
    assert one.most_nbytes == 6000 and one.nbytes == 24000


def test_rounds_of_a_chain_follow_each_other() -> None:
    link = Link(latency=1e-6, bandwidth=1e9)
    one = timed(ringcomm.plan.broadcast("chain", world_size=4), 1000, Network(link))
    assert [each.seconds for each in one.rounds] == pytest.approx([2e-6, 4e-6, 6e-6])


def test_plans_of_ones_own() -> None:
    """Of which one rank's two transfers belong to one step, and come one after the other."""
    swap = [Step([Transfer(1, 0)], [Transfer(1, 0, reduce=True)])]
    back = [Step([Transfer(0, 0)], [Transfer(0, 0, reduce=True)])]
    plans = Plans("all_reduce", [Plan(1, swap), Plan(1, back)])
    plans.verify()
    one = timed(plans, 1000, Network(Link(latency=1e-6, bandwidth=1e9)))
    assert [each.seconds for each in one.rounds] == pytest.approx([2e-6])


OWN = """
from beside_my_plans import CHUNKS
from ringcomm import plan

def star(rank, world_size):
    others = range(1, world_size)
    if rank:
        first = plan.Step([plan.Transfer(0, 0)], [])
        return plan.Plan(CHUNKS, [first, plan.Step([], [plan.Transfer(0, 0)])])
    return plan.Plan(1, [
        plan.Step([], [plan.Transfer(peer, 0, reduce=True) for peer in others]),
        plan.Step([plan.Transfer(peer, 0) for peer in others], []),
    ])

plan.register("all_reduce", "my_star", star)
"""


def test_command_with_a_file_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    file, output = tmp_path / "my_plans.py", tmp_path / "both.html"
    file.write_text(OWN)
    (tmp_path / "beside_my_plans.py").write_text("CHUNKS = 1\n")
    what = ["explain", "--algorithm", "ring", "--beside", "my_star", "--import", str(file)]
    what += ["--world-size", "4", "--nbytes", "64K", "--link", "1us:10GB/s"]
    assert main([*what, "-o", str(output)]) == 0
    printed = capsys.readouterr().out
    assert f"wrote {output}" in printed and "my_star" in printed
    table = printed.split("wrote ")[0]
    assert max(map(len, table.splitlines())) <= 80  # in a pipe
    numbers = re.findall(r"^ *(\d+) +(?:reduce-scatter|all-gather)", printed, re.M)
    assert numbers == list("012345")  # of steps, as in plans[rank].steps
    assert "all_reduce: ring beside my_star, 4 ranks" in output.read_text()

    assert main([*what, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    ring, star = document["algorithms"]
    assert (ring["algorithm"], star["algorithm"]) == ("ring", "my_star")
    assert ring["num_steps"] == len(ring["steps"]) == 6
    link = Link(1e-6, 10e9)
    plans = ringcomm.plan.all_reduce("my_star", world_size=4)
    assert star["seconds"] == plans.simulate(65536, Network(link)).seconds
    assert star["nbytes"] == 6 * 65536 and star["most_nbytes_of_a_rank"] == 3 * 65536
    assert document["nbytes"] == 65536 and document["network"]["inside"]["latency"] == 1e-6


def test_command_on_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what = ["explain", "--algorithm", "ring", "--beside", "hierarchical", "--world-size", "4"]
    what += ["--ranks-per-host", "2,2"]
    output = tmp_path / "both.svg"
    assert main([*what, "-o", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "hosts of 2: 3.4 µs, 450 GB/s; between hosts: 14 µs, 50 GB/s" in printed
    text = output.read_text()
    rings = ringcomm.plan.all_reduce("ring", world_size=4).num_steps
    tiers = ringcomm.plan.all_reduce("hierarchical", world_size=4, ranks_per_host=2).num_steps
    assert text.count("<!-- step ") == text.count(", done at ") == rings + tiers


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nbytes", "1K"], "--nbytes is of --beside, which is not given"),
        (["--json"], "--json is of --beside, which is not given"),
        (["--beside", "tree"], "algorithm of all_reduce must be one of"),
        (["--beside", "direct", "-o", "both.gif"], "must end in one of .html, .svg, got both.gif"),
        (["--beside", "direct", "--timeline"], "--timeline shows one algorithm"),
        (["--beside", "direct", "--ranks-per-host", "3,2"], "as many ranks on every host"),
        (["--beside", "direct", "--ranks-per-host", "2,2"], "must add up to 5 ranks, got 4"),
        (["--beside", "direct", "--ranks-per-host", "3"], "must divide world_size"),
        (["--beside", "direct", "--root", "1"], "all_reduce has no root, got 1"),
    ],
)
def test_refuses(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--import", "nowhere/plans.py"])
    assert "cannot be imported" in capsys.readouterr().err


# ---- The page


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    yield from started_browser()


# How many labels are covered by, or cover a part of, a rank's circle.
TOKENS_UNDER_CIRCLES = """
let touching = 0;
for (const { contentDocument } of frames) {
  const circles = [...contentDocument.querySelectorAll("circle")].map((circle) => {
    const { x, y, width } = circle.getBoundingClientRect();
    return [x + width / 2, y + width / 2, width / 2];
  });
  for (const label of contentDocument.querySelectorAll(".token rect")) {
    const { left, right, top, bottom } = label.getBoundingClientRect();
    touching += circles.some(([x, y, radius]) =>
      Math.hypot(x - Math.min(right, Math.max(left, x)), y - Math.min(bottom, Math.max(top, y))) <
      radius - 1);
  }
}
return touching;
"""


def test_both_play_on_one_clock(browser: object, tmp_path: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    network = Network(LINKS["nvlink4"], LINKS["ndr"], ranks_per_host=2)
    both = [
        timed(ringcomm.plan.all_reduce("ring", world_size=4), 1 << 20, network),
        timed(
            ringcomm.plan.all_reduce("hierarchical", world_size=4, ranks_per_host=2),
            1 << 20,
            network,
        ),
    ]
    text = beside_page(both, "hosts")
    assert not any(word in text for word in ("src=", "href=", "https:", "@import", "url(h"))
    file = tmp_path / "both.html"
    file.write_text(text, encoding="utf-8")
    browser.get(file.as_uri())

    def now() -> float | None:
        """None before the page is ready."""
        seconds = browser.execute_script("return document.body.dataset.seconds")
        return None if seconds is None else float(seconds)

    def steps() -> list[int]:
        return [
            int(step)
            for step in browser.execute_script(
                "return frames.map(each => each.contentDocument.body.dataset.step)"
            )
        ]

    def press(key: str) -> None:
        ActionChains(browser).send_keys(key).perform()

    WebDriverWait(browser, 30, 0.05).until(lambda _: now() == 0)
    every = sorted({each.seconds for one in both for each in one.rounds})
    for end in every:
        assert len(browser.execute_script("return [...document.querySelectorAll('.now')]")) >= 1
        press(Keys.ARROW_RIGHT)
        assert now() == end
        assert steps() == [sum(each.seconds <= end for each in one.rounds) for one in both]
    assert steps() == [len(one.rounds) for one in both]
    press(Keys.ARROW_LEFT)
    assert now() == every[-2]

    # Half way through the first step of either, the tokens are on their way.
    half = min(one.rounds[0].seconds for one in both) / 2
    browser.execute_script("go(arguments[0])", half)
    assert steps() == [0, 0]
    tokens = browser.execute_script(
        "return frames.map(each => each.contentDocument.querySelectorAll('.token').length)"
    )
    assert tokens == [one.rounds[0].num_transfers for one in both]
    for part in (0, 0.001, 0.5):
        browser.execute_script("go(arguments[0])", part * both[1].rounds[0].seconds)
        assert browser.execute_script(TOKENS_UNDER_CIRCLES) == 0

    browser.execute_script("document.getElementById('speed').value = 2")
    browser.execute_script("go(arguments[0])", 0.9 * every[-1])
    press(" ")
    WebDriverWait(browser, 30, 0.05).until(lambda _: now() == every[-1])
    assert steps() == [len(one.rounds) for one in both]

    frame = browser.execute_script("return frames[0]")
    browser.switch_to.frame(frame)
    browser.execute_script("document.body.focus()")
    press(Keys.HOME)  # the page around does what the one inside gets
    browser.switch_to.default_content()
    assert now() == 0
    assert browser.get_log("browser") == []
