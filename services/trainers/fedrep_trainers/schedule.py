"""The learning rate of a round. A round has one rate: all its local steps use it, as eta in equation (local_mSGD)."""

from __future__ import annotations

import math

from fedrep_trainers.settings import TrainerSettings


def learning_rate(settings: TrainerSettings, round_number: int) -> float:
    """Rounds count from 1; a milestone's own round already has the smaller rate."""
    rate, before = settings.learning_rate, max(round_number - 1, 0)
    if settings.schedule == "step":
        rate *= settings.gamma ** sum(milestone <= round_number for milestone in settings.milestones)
    elif settings.schedule == "cosine" and settings.total_rounds is not None:
        done = min(before / settings.total_rounds, 1.0)
        rate *= 0.5 * (1.0 + math.cos(math.pi * done))
    if before < settings.warmup_rounds:
        rate *= (before + 1) / settings.warmup_rounds
    return rate
