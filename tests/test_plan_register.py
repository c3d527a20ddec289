"""Plans of one's own under a name: made, found, simulated and drawn like those that come along."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

from ringcomm import plan
from ringcomm.cli import main
from ringcomm.plan import LINKS, Network, Plan, PlanError, Plans, Step, Transfer, registry


def exchange(rank: int, world_size: int) -> Plan:
    """Of two ranks; each sends all it has."""
    peer = 1 - rank
    return Plan(1, [Step([Transfer(peer, 0)], [Transfer(peer, 0, reduce=True)])])


def relay(world_size: int, root: int) -> Plans:
    """Another name for the chain."""
    return plan.broadcast("chain", world_size=world_size, root=root)


def test_the_example() -> None:
    assert doctest.testmod(registry) == (0, 4)


def test_a_plan_for_each_rank() -> None:
    plan.register("all_reduce", "exchange", exchange)
    plans = plan.all_reduce("exchange", world_size=2)
    plans.verify()
    assert list(plans) == [exchange(0, 2), exchange(1, 2)]
    assert str(plans).startswith("all_reduce (exchange): 2 ranks, 1 chunk, 1 step\n")
    assert plan.registered("all_reduce", "exchange") is exchange
    assert plan.registered("reduce_scatter", "exchange") is None


def test_the_plans_of_all_ranks_and_a_root() -> None:
    plan.register("broadcast", "relay", relay)
    plans = plan.broadcast("relay", world_size=5, root=3)
    plans.verify()
    assert list(plans) == list(relay(5, 3))
    plan.register("broadcast", "listed", lambda world_size, root: list(relay(world_size, root)))
    assert list(plan.broadcast("listed", world_size=5, root=3)) == list(plans)
    plan.register("broadcast", "each", lambda rank, world_size, root: relay(world_size, root)[rank])
    assert list(plan.broadcast("each", world_size=5, root=3)) == list(plans)


def test_names_of_parts_are_kept() -> None:
    plan.register("all_reduce", "same", lambda world_size: plan.all_reduce(world_size=world_size))
    same = plan.all_reduce("same", world_size=3)
    assert same.phases == (("reduce-scatter", 2), ("all-gather", 2))


def test_parameters_with_defaults_do_not_count() -> None:
    plan.register(
        "all_reduce", "mine", lambda rank, world_size, fanout=2: exchange(rank, world_size)
    )
    plan.all_reduce("mine", world_size=2).verify()


def test_what_is_wrong_shows_when_it_is_verified() -> None:
    plan.register("all_reduce", "nothing", lambda rank, world_size: Plan(1, []))
    with pytest.raises(PlanError):
        plan.all_reduce("nothing", world_size=2).verify()


def test_simulated_and_replaced() -> None:
    """Once one latency, once two: the name stands for what was registered last."""

    def simulated() -> float:
        network = Network(LINKS["ndr"])
        return plan.simulate("all_reduce", "mine", world_size=2, nbytes=0, network=network).seconds

    plan.register("all_reduce", "mine", exchange)
    assert simulated() == pytest.approx(14e-6)
    plan.register("all_reduce", "mine", lambda world_size: plan.all_reduce(world_size=world_size))
    assert simulated() == pytest.approx(28e-6)


def test_commands_find_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.register("all_reduce", "exchange", exchange)
    page = tmp_path / "plan.html"
    drawn = ["explain", "--algorithm", "exchange", "--world-size", "2", "-o", str(page)]
    assert main(drawn) == 0
    assert "all_reduce (exchange), 2 ranks" in page.read_text()
    options = "--algorithm ring,exchange --world-size 2 --ranks-per-host 2 --nbytes 1K"
    assert main(["simulate", *options.split()]) == 0
    assert "exchange" in capsys.readouterr().out


def drifting(world_size: int) -> list[Plan]:
    """Rank 0 computes (0 + 1) + 2, rank 1 computes 0 + (1 + 2), and rank 2 copies that."""

    def add(peer: int) -> list[Transfer]:
        return [Transfer(peer, 0, reduce=True)]

    def to(*peers: int) -> list[Transfer]:
        return [Transfer(peer, 0) for peer in peers]

    return [
        Plan(1, [Step(to(1), add(1)), Step([], add(2))]),
        Plan(1, [Step(to(0), add(2)), Step([], add(0)), Step(to(2))]),
        Plan(1, [Step(to(0, 1)), Step([], to(1))]),
    ]


def test_where_ranks_end_with_different_bits() -> None:
    plan.register("all_reduce", "drifting", drifting)
    plans = plan.all_reduce("drifting", world_size=3)
    plans.verify()
    assert plans.bitwise_difference() == (
        "rank 0 ends with (rank 0 + rank 1) + rank 2 in chunk 0, and rank 1 with "
        "rank 0 + (rank 1 + rank 2)"
    )
    for same in (plan.all_reduce("ring", world_size=5), plan.broadcast(world_size=5)):
        assert same.bitwise_difference() == ""
    with pytest.raises(PlanError, match="all_reduce promises"):
        Plans("all_reduce", [Plan(1, [])] * 2).bitwise_difference()


def test_explain_says_where_ranks_end_with_different_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.register("all_reduce", "drifting", drifting)
    page = tmp_path / "plan.html"
    explain = ["explain", "--world-size", "3", "-o", str(page), "--algorithm"]
    assert main([*explain, "drifting"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("not the same bits on all ranks: rank 0 ends with (rank 0 + rank 1)")
    assert main([*explain, "ring"]) == 0
    assert capsys.readouterr().err == ""


def test_explain_refuses_a_wrong_plan(capsys: pytest.CaptureFixture[str]) -> None:
    plan.register("all_reduce", "nothing", lambda rank, world_size: Plan(1, []))
    assert main(["explain", "--world-size", "2", "--algorithm", "nothing"]) == 1
    assert "explain: rank 0 ends with the contributions of rank 0" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "simulate"])
def test_commands_import_it(command: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from ringcomm import plan\n"
        "plan.register('all_reduce', 'mine', lambda world_size: plan.all_reduce("
        "world_size=world_size))\n"
    )
    options = ["--import", "mine", "--algorithm", "mine", "--world-size", "8"]
    result = subprocess.run(
        [sys.executable, "-m", "ringcomm", command, *options],
        cwd=tmp_path,
        text=True,
        capture_output=True,
    )
    assert result.returncode == 0, result.stderr


def test_a_module_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--import", "no_such_module"])
    assert "No module named 'no_such_module'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("collective", "name", "generator", "message"),
    [
        ("all_sum", "mine", exchange, "collective must be one of 'all_reduce', "),
        ("all_reduce", "ring", exchange, "name must be none of auto, .*chain, .*got 'ring'"),
        ("all_reduce", "chain", exchange, "name must be none of"),
        ("all_reduce", "auto", exchange, "name must be none of auto"),
        ("all_reduce", "", exchange, "name must consist of letters"),
        ("all_reduce", "one,two", exchange, "name must consist of letters"),
        ("all_reduce", "mine", lambda: 0, r"must take \(rank, world_size\) or \(world_size\)"),
        ("all_reduce", "mine", lambda a, b, c: 0, r"got \(a, b, c\)"),
        ("reduce", "mine", lambda a: 0, r"\(rank, world_size, root\) or \(world_size, root\)"),
    ],
)
def test_register_refuses(collective, name, generator, message) -> None:
    with pytest.raises(ValueError, match=message):
        plan.register(collective, name, generator)
    assert plan.registered(collective, name) is None


def test_register_refuses_what_is_no_function() -> None:
    with pytest.raises(TypeError, match="not a callable"):
        plan.register("all_reduce", "mine", 3)


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        (lambda world_size: exchange(0, 2), "'mine' must have 2 plans, and there is but one"),
        (lambda world_size: [exchange(0, 2)], "'mine' must have 2 plans, and there are 1"),
        (lambda rank, world_size: [exchange(0, 2)], "must return its Plan, got "),
    ],
)
def test_generators_that_give_something_else(generator, message) -> None:
    plan.register("all_reduce", "mine", generator)
    with pytest.raises(ValueError, match=message):
        plan.all_reduce("mine", world_size=2)


def test_arguments_are_checked() -> None:
    plan.register("broadcast", "relay", relay)
    with pytest.raises(ValueError, match="world_size must be between 1 and"):
        plan.broadcast("relay", world_size=0)
    with pytest.raises(ValueError, match="root must be between 0 and 1, got 2"):
        plan.broadcast("relay", world_size=2, root=2)
    plan.register("all_reduce", "exchange", exchange)
    with pytest.raises(ValueError, match="ranks_per_host=2 has no meaning for 'exchange'"):
        plan.all_reduce("exchange", world_size=2, ranks_per_host=2)
