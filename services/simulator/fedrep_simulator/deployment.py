"""From the simulation to the federation: the files as they were played, and the commands that start the same run for real."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

from fedrep_runtime.files import write_atomically
from fedrep_runtime.toml_text import toml_document
from fedrep_simulator.terms import Terms

RUN_FILE, CLIENT_FILE = "run.toml", "client.toml"
PLAYED_FILE = "played.toml"  # beside a client.toml that says something else, and stays
HOST = "federation.example.org"

Part = tuple[str, list[str]]


def write_files(root: Path, terms: Terms) -> None:
    """The terms that were simulated, without the attackers; and a silo's settings without a shard: it has data of its own."""
    run = terms.run.model_dump(mode="json", exclude_none=True, exclude={"drills"})
    own = {"user_code_dir", "shard_index", "shard_count", "privacy"}
    trainer = terms.trainer.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude=own)
    policy = terms.policy.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    silo: dict[str, Any] = {"run": terms.run.name, "trainer": trainer, "policy": policy}  # the server is learned by enrolling
    if terms.trainer.privacy is not None:
        silo["privacy"] = terms.trainer.privacy.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    write_atomically(root / RUN_FILE, toml_document(run).encode(), 0o644)
    write_atomically(root / CLIENT_FILE, toml_document(silo).encode(), 0o644)


def commands(terms: Terms, folder: Path | None, host: str = HOST) -> list[Part]:
    """For each machine what to type there, in this order; TOKEN is in the file that `fedrep init` writes for that name."""
    place = folder if folder is not None else Path()
    settings = terms.client_file if terms.client_file is not None else place / CLIENT_FILE
    silos = " ".join(f"--silo {shlex.quote(name)}" for name in terms.run.silos)
    taken = terms.client_file is None and Path(CLIENT_FILE).exists()
    copy, its = (PLAYED_FILE, f"this {PLAYED_FILE} as its {CLIENT_FILE}") if taken else (CLIENT_FILE, f"this {CLIENT_FILE}")
    copied = [] if settings == Path(copy) else [f"cp {shlex.quote(str(settings))} {copy}"]
    return [
        (
            "on the consortium's machine, beside the trainer",
            [
                f"fedrep init federation --host {host} {silos}",
                "fedrep up    # stays running; what follows in another terminal",
                *copied,
                f"fedrep run model --config {copy}",
                f"fedrep run create --config {shlex.quote(str(place / RUN_FILE))}",
            ],
        ),
        (
            f"on every silo, beside the trainer, {its} and its own data; TOKEN is in invitations/NAME.token",
            [f"{_said(terms, host)}fedrep join TOKEN"],
        ),
    ]


def _said(terms: Terms, host: str) -> str:
    """A file that a silo has already may name another run or server: its environment wins over it."""
    if terms.client_file is None:
        return ""
    held = tomllib.loads(terms.client_file.read_text(encoding="utf-8"))
    run = "" if held.get("run") == terms.run.name else f"FEDREP_CLIENT__RUN={shlex.quote(terms.run.name)} "
    return run + (f"FEDREP_CLIENT__SERVER={host}:8550 " if "server" in held else "")
