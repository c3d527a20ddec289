"""examples/ring.ipynb: it runs from top to bottom, and is kept without what running it leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "examples" / "ring.ipynb"


def test_it_is_kept_without_outputs() -> None:
    """They would name the machine, and change with every run."""
    document = json.loads(NOTEBOOK.read_text())
    assert document["nbformat"] == 4
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 8
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert set(document["metadata"]) == {"kernelspec", "language_info"}


def text_of(cell: dict) -> str:
    return "".join(
        output.get("text") or "".join(output.get("data", {}).get("text/plain", ""))
        for output in cell["outputs"]
    )


@pytest.mark.slow
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="no nbclient: pip install -e '.[clients]'")
    nbformat = pytest.importorskip("nbformat", reason="no nbformat: pip install -e '.[clients]'")
    pytest.importorskip("ipykernel", reason="no ipykernel: pip install -e '.[clients]'")
    # Whatever it writes is the test's; the ranks find ringcomm as this process does.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(
        notebook, timeout=150, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()

    (folder,) = tmp_path.glob("ring-*")
    measured = json.loads((folder / "measured.json").read_text())
    assert all(set(seconds) == {"ring", "hypercube"} for seconds in measured.values())
    printed = "\n".join(text_of(cell) for cell in notebook.cells if cell.cell_type == "code")
    assert "all_reduce (ring): 4 ranks, 4 chunks, 6 steps" in printed
    assert "receives chunk 0 from rank 0, which does not send it" in printed
    assert "4194304 bytes: ring" in printed
    assert "Warning" not in printed
    images = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/svg+xml" in output.get("data", {}) for output in images)
