"""The notebooks of docs/analysis.md run from top to bottom and carry no outputs."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NOTEBOOKS = ROOT / "analysis" / "notebooks"
PICTURES = {"compare.ipynb": 4, "fidelity.ipynb": 1, "gain_sweep.ipynb": 2}


@pytest.mark.parametrize("name", PICTURES)
def test_no_outputs_are_committed(name):
    for cell in json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("name", PICTURES)
def test_executes_and_shows_its_pictures(name, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat to read a notebook")
    client = pytest.importorskip("nbclient", reason="needs nbclient to execute a notebook")
    pytest.importorskip("ipykernel", reason="needs ipykernel to execute a notebook")
    monkeypatch.setenv("TWP_NOTEBOOK_SIZE", "small")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(notebook)
    client.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    shown = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    assert len(shown) == PICTURES[name]
