"""Installs a wheel beside a torch in a fresh environment, and tries it there."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path

from fresh_environment import StepError, Torch, call, fresh
from make_wheel import python_tag

SUM = """
import torch, ringcomm
ringcomm.init()
tensor = torch.full((1000,), float(ringcomm.get_rank() + 1))
ringcomm.all_reduce(tensor)
assert tensor.eq(3).all() and ringcomm.get_world_size() == 2
ringcomm.destroy_process_group()
"""
ASKED = """
import json, platform, torch, ringcomm
from ringcomm import _build_info
print(json.dumps({
    "python": platform.python_version(),
    "torch": str(torch.__version__),
    "device": "CPU" if _build_info.CPU_ONLY_REASON else f"CPU, CUDA {_build_info.ARCH_LIST}",
}))
"""
# The quick tests that need the package alone, not a checkout.
TESTS = (
    *("test_api.py", "test_init.py", "test_leaving.py", "test_backend_reductions.py"),
    *("test_backend_moves.py", "test_backend_messages.py", "test_process_group.py"),
)


def try_wheel(wheel: Path, source: Path | None, torch: Torch, out: Path) -> dict[str, object]:
    """Installs a wheel beside a torch and tries it; what the table says of it.

    Args:
        wheel: the wheel.
        source: a source distribution whose quick tests are run, too; None: they are not.
        torch: what the wheel is tried with.
        out: where the log goes.

    Raises:
        StepError: something did not work.
    """
    version = wheel.name.split("-")[1]
    log = out / "logs" / f"try-{python_tag()}-torch-{torch.version}.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = fresh(folder / "env", log, torch)
        (folder / "sum.py").write_text(SUM)
        began = time.monotonic()
        call(log, python, "-m", "pip", "install", "-q", wheel.resolve(), cwd=folder)
        installed = time.monotonic()
        ranks = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        call(log, python, "-m", *ranks, "sum.py", cwd=folder, OMP_NUM_THREADS="1")
        added = time.monotonic()
        said = call(log, python, "-m", "ringcomm", "--version", cwd=folder)
        if said != f"ringcomm {version}":
            raise StepError(f"--version says {said!r}")
        found = json.loads(call(log, python, "-c", ASKED, cwd=folder))
        if found["torch"].split("+")[0] != torch.version.split("+")[0]:
            raise StepError(f"pip replaced that torch by {found['torch']}, for the wheel")
        call(log, python, "-m", "ringcomm", "doctor", cwd=folder)
        result = "version, doctor, sum"
        if source:
            result += f", {_tests(source, python, folder, log)}"
    seconds = {"install_seconds": installed - began, "sum_seconds": added - installed}
    return found | {name: round(value, 1) for name, value in seconds.items()} | {"result": result}


def _tests(source: Path, python: Path, folder: Path, log: Path) -> str:
    """The quick tests of a source distribution, without its package, on what is installed."""
    shutil.unpack_archive(source, folder / "source")
    (tree,) = (folder / "source").iterdir()
    (tree / "ringcomm").rename(tree / "ringcomm_of_the_sources")
    needed = ("pytest", "pytest-timeout", "hypothesis", "expecttest", "numpy", "psutil")
    call(log, python, "-m", "pip", "install", "-q", *needed, cwd=folder)
    pytest = (python, "-m", "pytest", "-q", "-m", "not slow and not torch_suite")
    files = [f"tests/{name}" for name in TESTS]
    return call(log, *pytest, *files, cwd=tree).strip("= ")
