"""`python -m ringcomm tune` between hosts measures their network; on one host it does not."""

from __future__ import annotations

from pathlib import Path

from hosts import Local, Network
from hosts.conftest import needs_hosts
from ringcomm import tuning
from ringcomm.host import machine
from ringcomm.plan import Link

RULES = (tuning.Rule(2, "reduce", 5, "chain"),)


def script_in(folder: Path) -> Path:
    script = folder / "tune.py"
    script.write_text('import sys\nfrom ringcomm.cli import main\nsys.exit(main(["tune"]))\n')
    return script


@needs_hosts
def test_the_network_is_measured(tmp_path: Path) -> None:
    """It is no faster than it can be. What the file has of this machine stays there."""
    file = tmp_path / "tuning.json"
    tuning.write(file, tuning.Tuning(machine(), {}, RULES))
    env = {"RINGCOMM_TUNING": str(file)}
    with Network(2, rate="1gbit", delay_ms=2) as network:
        job = network.start(script_in(tmp_path), placement=[0, 0, 1], env=env)
        first, *others = job.succeed(60)
    found = tuning.read(file)
    assert found.rules == RULES and found.machine == machine()
    link = Link.parse(found.across)
    assert link.latency >= 2e-3 and link.bandwidth <= 0.125e9
    assert f"(rc-host0, rc-host1): RINGCOMM_ACROSS={found.across}\n" in first.stdout
    assert f"# wrote {file}, on each host" in first.stdout
    assert [other.stdout for other in others] == ["", ""]


def test_one_host_has_no_network(tmp_path: Path) -> None:
    env = {"RINGCOMM_TUNING": str(tmp_path / "tuning.json")}
    with Local(1) as local:
        job = local.start(script_in(tmp_path), placement=[0, 0], env=env)
        results = job.wait(60)
    for result in results:
        assert result.status == 2
        assert "tune: error: all 2 ranks are on one host: start them on several" in result.stderr
    assert not (tmp_path / "tuning.json").exists()
