"""Which model is the best, by any figure of the evaluator."""

from __future__ import annotations

import math

import pytest

from fedrep.errors import SettingsError
from fedrep.protocol.best import Best


@pytest.mark.parametrize(
    ("named", "score"),
    [
        ("", 0.75),
        ("accuracy", 0.75),
        ("auroc", 0.9),
        ("-auroc", -0.9),
        ("loss", -0.5),
        ("-loss", -0.5),
        ("perplexity", -1.6),
        ("f1", None),
        ("broken", None),
    ],
)
def test_a_score_is_larger_for_a_better_model(named: str, score: float | None) -> None:
    metrics = {"auroc": 0.9, "perplexity": 1.6, "broken": math.nan}
    assert Best.named(named).score(0.75, 0.5, metrics) == score


def test_a_task_without_accuracy_is_judged_by_its_loss() -> None:
    assert Best().score(None, 0.5, {}) == -0.5
    assert Best().score(None, None, {}) is None


def test_a_sign_alone_names_nothing() -> None:
    with pytest.raises(SettingsError, match="names no figure"):
        Best.named("-")
