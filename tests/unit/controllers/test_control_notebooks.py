"""The notebooks of docs/control.md run from top to bottom and carry no outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[3] / "analysis" / "notebooks"
NAMES = ("stability_map.ipynb", "h0_is_not_b0_lbar.ipynb")


def _cells(name: str) -> list[dict]:
    return json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("name", NAMES)
def test_no_outputs_are_committed(name):
    for cell in _cells(name):
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("name", NAMES)
def test_code_runs_and_draws(name, tmp_path):
    """The cells' code as one script: needs no notebook package."""
    code = "\n".join(
        "".join(cell["source"]) for cell in _cells(name) if cell["cell_type"] == "code"
    )
    code = code.replace("plt.show()", "fig.savefig(f'{id(fig)}.png'); plt.close(fig)")
    environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(NOTEBOOKS.parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    pictures = list(tmp_path.glob("*.png"))
    assert pictures
    assert all(picture.stat().st_size > 10_000 for picture in pictures)


@pytest.mark.parametrize("name", NAMES)
def test_executes_as_a_notebook(name):
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat to read a notebook")
    client = pytest.importorskip("nbclient", reason="needs nbclient to execute a notebook")
    pytest.importorskip("ipykernel", reason="needs ipykernel to execute a notebook")
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(notebook)
    client.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOKS.parents[1])}}
    ).execute()
