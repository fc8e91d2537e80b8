"""The notebook of `examples/` runs from its first cell to its last, as it stands there."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_promises() -> None:
    notebook: Any = nbformat.read(EXAMPLES / "simulate.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    before = [cell["outputs"] for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell["execution_count"] for cell in notebook.cells if cell.cell_type == "code")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Jupyter's own
        NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    shown = [kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert {"text/html", "image/png"} <= set(shown)
    assert any("<All keys matched successfully>" in str(outputs) for outputs in before)
    assert "<All keys matched successfully>" in str(notebook.cells[-1]["outputs"])
