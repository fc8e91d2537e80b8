"""What several modules of unit tests ask for."""

from __future__ import annotations

import pytest

from fedrep.aggregators import compiled


@pytest.fixture(params=["numpy", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test twice: the inner loops of numpy, and those of numba whatever the size."""
    if request.param == "compiled":
        pytest.importorskip("numba")
        monkeypatch.setattr(compiled, "WORTHWHILE", 0)
    else:
        monkeypatch.setattr(compiled, "_load", lambda: None)
    return str(request.param)
