"""torchrun on two hosts, where one rank hangs: the flight records of all ranks are there."""

from __future__ import annotations

import sys
from pathlib import Path

from flight_records import HANGS, analysis, files_in

from hosts import Network
from hosts.conftest import needs_hosts


@needs_hosts
def test_the_analyzer_names_the_rank_that_hung_on_another_host(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HANGS)
    folder = tmp_path / "records"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--rdzv-id", "job"]
    torchrun += ["--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    torchrun += ["--rdzv-endpoint", "rc-host0:29400", str(script)]
    env = {"TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank_", "OMP_NUM_THREADS": "1"}
    with Network(2) as network:
        ended = network.start_commands(dict.fromkeys(range(2), torchrun), env=env).wait(150)
    assert all(host.status != 0 for host in ended), ended
    assert files_in(folder) == [f"rank_{rank}" for rank in range(4)]
    text = analysis(folder)
    assert "missing ranks: {2}" in text
    assert text.count("Not all ranks") == 1
