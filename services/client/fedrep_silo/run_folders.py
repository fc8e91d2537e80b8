"""Where a silo that goes from run to run keeps each of them. Imports no gRPC: `fedrep client status` is asked often."""

from __future__ import annotations

import json
from urllib.parse import quote

from fedrep.errors import SettingsError
from fedrep_silo.config import SiloSettings
from fedrep_silo.state import StateFolder

FOLLOWING = "following.json"


def wanted(settings: SiloSettings) -> str:
    return ", ".join(settings.runs) or settings.run


def settings_for(settings: SiloSettings, run: str) -> SiloSettings:
    """One run's settings: a state folder of its own, whose name leads nowhere else. Ledger and credentials are common."""
    folder = settings.state / "runs" / quote(run, safe=" ").replace(".", "%2E")
    return settings.model_copy(update={"run": run, "runs": (), "state": folder})


def has_trained(settings: SiloSettings) -> bool:
    """Whether a following silo has trained in any of its runs; a folder that cannot be read speaks for it."""
    runs = settings.state / "runs"
    return runs.is_dir() and any(_has_trained(StateFolder(folder)) for folder in runs.iterdir())


def _has_trained(folder: StateFolder) -> bool:
    try:
        return folder.has_trained
    except SettingsError:
        return True


def run_of_now(settings: SiloSettings) -> SiloSettings:
    """For commands about one run: that which a following daemon is in, or was in last."""
    if not settings.follows:
        return settings
    file = settings.state / FOLLOWING
    if not file.exists():
        raise SettingsError(f"this silo follows {wanted(settings)} and has been in no run yet; start it with `fedrep client`")
    return settings_for(settings, json.loads(file.read_bytes())["run"])
