"""Deadlines for tests in which nobody is late: a busy machine must not make a round go on without somebody."""

from __future__ import annotations

from fedrep_runtime.run_config import DeadlineConfig

DAYS = 1e6
NEVER = DeadlineConfig(propose=DAYS, submit=DAYS, confirm=DAYS, reveal=DAYS)
