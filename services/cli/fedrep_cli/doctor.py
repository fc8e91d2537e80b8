"""`fedrep doctor`: why a silo does not get through, as a table with what to do. Exit code 1 if anything failed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from fedrep_cli.ca import AsJson
from fedrep_cli.enroll import CredentialsFolder
from fedrep_cli.findings import render_findings
from fedrep_cli.output import emit
from fedrep_identity.diagnosis import Outcome, diagnose
from fedrep_runtime.logging import configure_logging
from fedrep_runtime.proxy import take_capitals

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    folder: CredentialsFolder = Path("credentials"),
    server: Annotated[str | None, typer.Option(help="host:port, if not the one learned at enrolment.")] = None,
    health: Annotated[str | None, typer.Option(help="host:port of the server's plain health port.")] = None,
    as_json: AsJson = False,
) -> int:
    """Check credentials, clock, revocation, DNS, TCP, TLS and the server's health, one after the other."""
    configure_logging("doctor", level="WARNING")
    take_capitals()
    findings = asyncio.run(diagnose(folder, server, health))
    rows = [{"check": item.check, "outcome": item.outcome.value, "text": item.text, "advice": item.advice} for item in findings]
    healthy = all(item.outcome is not Outcome.FAILED for item in findings)
    emit({"healthy": healthy, "findings": rows}, as_json, render_findings)
    return 0 if healthy else 1
