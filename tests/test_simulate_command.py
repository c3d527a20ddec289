"""python -m ringcomm simulate: its tables, for people and for machines, and what it refuses."""

from __future__ import annotations

import json

import pytest

from ringcomm.cli import main
from ringcomm.plan import Link, Network, simulate
from ringcomm.plan.algorithms import ALGORITHMS


def test_command_marks_the_cheapest(capsys, monkeypatch):
    """One shot has one latency instead of six, and twice the bytes."""
    monkeypatch.setenv("COLUMNS", "120")
    options = "--world-size 4 --ranks-per-host 4 --link 1us:1GB/s --algorithm ring,one_shot"
    assert main(["simulate", *options.split(), "--nbytes", "16..64K"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if line[:1] == ["4"]]
    text = "\n".join(" ".join(row) for row in rows)
    assert "4 16 B 6.02 µs 1.05 µs*" in text
    # 6 (1 us + 16 KiB / 1 GB/s) = 104 us against 1 us + 3 * 64 KiB / 1 GB/s = 198 us
    assert "4 64 KiB 104 µs* 198 µs" in text
    assert [row[1] for row in rows] == ["16", "64", "256", "1", "4", "16", "64"]


def test_command_for_machines(capsys):
    options = ["--json", "--world-size", "4,8", "--nbytes", "1M", "--algorithm", "ring,direct"]
    assert main(["simulate", *options, "--link", "5us:25GB/s", "--ranks-per-host", "8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["world_size"], row["nbytes"]) for row in found] == [(4, 2**20), (8, 2**20)]
    for row in found:
        network = Network(Link(5e-6, 25e9))
        for name in ("ring", "direct"):
            alone = simulate(
                "all_reduce", name, world_size=row["world_size"], nbytes=2**20, network=network
            )
            assert row["seconds"][name] == pytest.approx(alone.seconds)
        assert row["cheapest"] == min(row["seconds"], key=row["seconds"].__getitem__)


def test_limits_of_a_rank_are_shared(capsys):
    """A step sends 3 MB of the 4 at 1 GB/s; the title says what the limits are."""
    options = "--world-size 4 --ranks-per-host 4 --link 0us:9GB/s --egress 1GB/s --algorithm direct"
    assert main(["simulate", *options.split(), "--nbytes", "4000000"]) == 0
    printed = capsys.readouterr().out
    assert "egress 1 GB/s" in printed
    assert "6.00 ms" in printed


def test_a_pipe_gets_80_columns_with_every_algorithm_beside_its_times(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["simulate", "--world-size", "8", "--nbytes", "1K..4K"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line.split() for line in lines if "ranks" in line and "nbytes" in line]
    assert [name for head in heads for name in head[2:]] == list(ALGORITHMS["all_reduce"])
    for size in "1", "4":
        rows = [line for line in lines if line.split()[:3] == ["8", size, "KiB"]]
        assert len(rows) == len(heads) > 1
        assert "".join(rows).count("*") == 1
    assert lines[-1] == "* the cheapest"


def test_narrow_terminals_cut_no_figure(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["simulate", "--world-size", "8", "--nbytes", "1K"]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 60
    assert all(name in printed for name in ALGORITHMS["all_reduce"])


def test_an_imported_algorithm_is_beside_the_others(tmp_path, capsys):
    module = tmp_path / "imported_by_simulate.py"
    module.write_text(
        "from ringcomm import plan\n"
        "def same(world_size):\n"
        "    return plan.all_reduce('direct', world_size=world_size)\n"
        "plan.register('all_reduce', 'same_as_direct', same)\n"
    )
    options = ["--json", "--import", str(module), "--world-size", "4", "--nbytes", "1K"]
    assert main(["simulate", *options]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert list(row["seconds"]) == [*ALGORITHMS["all_reduce"], "same_as_direct"]
    assert row["seconds"]["same_as_direct"] == row["seconds"]["direct"]


def test_command_draws(tmp_path, capsys):
    file = tmp_path / "times.svg"
    options = "--world-size 8,64 --nbytes 1K,1M --across 14us:50GB/s:1us"
    assert main(["simulate", *options.split(), "--plot", str(file)]) == 0
    assert "64 ranks" in file.read_text()
    assert capsys.readouterr().out.splitlines()[-1] == f"wrote {file}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--link", "copper"], "latency, a bandwidth above 0 and overhead such as"),
        (["--link", "1.2.3us:1GB/s"], "got '1.2.3us:1GB/s'"),
        (["--nbytes", "1G..1K"], "must be a range from less to more, got '1G..1K'"),
        (["--egress", "370"], "must be a bandwidth above 0 such as 370GB/s, got '370'"),
        (["--ingress", "0GB/s"], "must be a bandwidth above 0 such as 370GB/s, got '0GB/s'"),
        (["--algorithm", "tree"], "algorithm of all_reduce must be one of 'ring', 'direct', "),
        (["--world-size", "0"], "must be an integer from 1, got '0'"),
        (["--plot", "times.txt"], "--plot must end in one of"),
        (["--world-size", "12"], "ranks_per_host must divide world_size, which is 12, got 8"),
    ],
)
def test_command_says_what_is_wrong(options, message, capsys):
    try:
        code = main(["simulate", *options])
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    assert message in capsys.readouterr().err
