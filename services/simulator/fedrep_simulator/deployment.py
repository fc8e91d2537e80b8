"""From the simulation to the federation: the files as they were played, and the commands that start the same run for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedrep_runtime.files import write_atomically
from fedrep_runtime.toml_text import toml_document
from fedrep_simulator.terms import Terms

RUN_FILE, CLIENT_FILE = "run.toml", "client.toml"
SERVER, AUTHORITY, PORT = "federation.example.org", "ca.example.org", 8550

Part = tuple[str, list[str]]


def write_files(root: Path, terms: Terms) -> None:
    """The terms that were simulated, without the attackers; and a silo's settings without a shard: it has data of its own."""
    run = terms.run.model_dump(mode="json", exclude_none=True, exclude={"drills"})
    own = {"user_code_dir", "shard_index", "shard_count", "privacy"}
    trainer = terms.trainer.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude=own)
    policy = terms.policy.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    silo: dict[str, Any] = {"server": f"{SERVER}:{PORT}", "run": terms.run.name, "trainer": trainer, "policy": policy}
    if terms.trainer.privacy is not None:
        silo["privacy"] = terms.trainer.privacy.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    write_atomically(root / RUN_FILE, toml_document(run).encode(), 0o644)
    write_atomically(root / CLIENT_FILE, toml_document(silo).encode(), 0o644)


def _silo_commands(terms: Terms, address: str) -> list[str]:
    """A file that a silo has already says perhaps nothing of server and run, or something else; its environment wins."""
    said = f"FEDREP_CLIENT__SERVER={address} FEDREP_CLIENT__RUN={terms.run.name} " if terms.client_file is not None else ""
    file = f" --config {terms.client_file}" if terms.client_file is not None and terms.client_file != Path(CLIENT_FILE) else ""
    return ["fedrep enroll TOKEN", f"{said}fedrep client check{file}", f"{said}fedrep client{file}"]


def commands(terms: Terms, folder: Path | None, server: str = SERVER, authority: str = AUTHORITY) -> list[Part]:
    """For each machine what to type there, in this order; TOKEN is what `fedrep silo invite` prints for that name."""
    address, place = f"{server}:{PORT}", folder if folder is not None else Path()
    settings = terms.client_file if terms.client_file is not None else Path(CLIENT_FILE)
    copied = [] if terms.client_file is not None or folder is None else [f"cp {place / CLIENT_FILE} {settings}"]
    return [
        (
            "on the consortium's machine, which stays apart from the server's",
            [
                f"fedrep ca init federation --address {authority} --server {address}",
                "fedrep ca serve    # stays running; what follows in another terminal",
                f"fedrep silo invite main --role server --dns {server}",
                "fedrep silo invite admin --role admin",
                *(f"fedrep silo invite {name}" for name in terms.run.silos),
            ],
        ),
        ("on the server's machine", ["fedrep enroll TOKEN", "fedrep server"]),
        (
            "on the admin's machine, beside the trainer",
            [
                "fedrep enroll TOKEN --folder admin",
                *copied,
                f"fedrep run model init.safetensors --config {settings}",
                f"fedrep run create --config {place / RUN_FILE} --model init.safetensors --server {address} --identity admin",
            ],
        ),
        (f"on every silo, beside the trainer, {settings} and its own data", _silo_commands(terms, address)),
    ]
