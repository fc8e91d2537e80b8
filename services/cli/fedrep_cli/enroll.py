"""`fedrep enroll` and `fedrep renew`: how a silo gets its certificate, and a new one before it ends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrep.errors import InvalidInputError
from fedrep_cli.ca import AsJson, describe_credentials, render_credentials
from fedrep_cli.output import emit
from fedrep_identity import enrolment_client
from fedrep_identity.folder import FederationAddresses, install_bundle, prepare_request, refuse_if_enrolled
from fedrep_identity.invitations import LARGEST_TOKEN, PREFIX
from fedrep_runtime.files import lock_folder, write_atomically
from fedrep_runtime.logging import configure_logging
from fedrep_runtime.proxy import take_capitals

app = typer.Typer(add_completion=False)
renew_app = typer.Typer(add_completion=False)

LONGEST_PATH = 200  # of what is taken for a file's name; an invitation is longer

CredentialsFolder = Annotated[
    Path,
    typer.Option("--folder", envvar="FEDREP_CREDENTIALS", help="Where key and certificate live.", file_okay=False),
]


@app.command()
def enroll(
    token: Annotated[
        str | None, typer.Argument(help="The invitation you were sent, or a file that holds it; - reads it from stdin.")
    ] = None,
    folder: CredentialsFolder = Path("credentials"),
    replace: Annotated[bool, typer.Option(help="Give an enrolled folder a new key and certificate.")] = False,
    request: Annotated[Path | None, typer.Option(help="Air-gapped: only make a key and write its request here.")] = None,
    install: Annotated[Path | None, typer.Option(help="Air-gapped: install the bundle from `fedrep ca sign`.")] = None,
    root_fingerprint: Annotated[str | None, typer.Option(help="With --install: the root's SHA-256, told apart.")] = None,
    server: Annotated[str, typer.Option(help="With --install: host:port of the federation server.")] = "",
    ca: Annotated[str, typer.Option(help="With --install: host:port of the authority's mTLS port, if any.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a key on this machine and get a certificate for it. The key never leaves."""
    if sum(choice is not None for choice in (token, request, install)) != 1:
        raise typer.BadParameter("give a TOKEN, or --request FILE, or --install FILE")
    configure_logging("enroll", level="WARNING")
    take_capitals()
    if request is not None:
        with lock_folder(folder):
            refuse_if_enrolled(folder, replace)
            write_atomically(request, prepare_request(folder), 0o644)
        emit({"request": request, "folder": folder}, as_json, _render_request)
        return
    if install is not None:
        credentials = _install(folder, install, root_fingerprint, server, ca)
    else:
        credentials = asyncio.run(enrolment_client.enrol(read_token(token) or "", folder, replace=replace))
    emit(describe_credentials(credentials, folder), as_json, render_credentials)


def read_token(token: str | None) -> str | None:
    """As given, from stdin, or from a file, where other users of the machine cannot read it as an argument."""
    if token is None or token.startswith(PREFIX):
        return token
    try:
        return _token_from(token)
    except UnicodeDecodeError:
        raise InvalidInputError(
            f"This is not text, and so no invitation: one starts with {PREFIX}. Name the right file."
        ) from None


def _token_from(token: str) -> str:
    if token == "-":
        if sys.stdin is None:
            raise InvalidInputError("The invitation was to come from stdin, which is closed. Give it as TOKEN, or name its file.")
        return sys.stdin.read(LARGEST_TOKEN + 1)
    if len(token) < LONGEST_PATH and Path(token).is_file():
        with Path(token).open() as file:
            return file.read(LARGEST_TOKEN + 1)
    if len(token) < LONGEST_PATH and (os.sep in token or Path(token).suffix == ".token"):
        raise InvalidInputError(f"There is no file {token}, and an invitation itself starts with {PREFIX}.")
    return token


def _install(folder: Path, bundle: Path, fingerprint: str | None, server: str, ca: str) -> Any:
    try:
        expected = bytes.fromhex((fingerprint or "").replace(":", "").strip())
    except ValueError:
        expected = b""
    if len(expected) != 32:
        raise InvalidInputError(
            "Give --root-fingerprint with the 64 hex digits that the federation's administrators told you by another "
            "way than the bundle; without it anybody could have made the bundle."
        )
    data = bundle.read_bytes()
    with lock_folder(folder):
        credentials = install_bundle(folder, data, expected)
        FederationAddresses(credentials.identity.federation, server, "", ca).save(folder)
    return credentials


@renew_app.command()
def renew(
    folder: CredentialsFolder = Path("credentials"),
    new_key: Annotated[bool, typer.Option(help="Make a new key too. Partners that pinned the old one must pin it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Get a new certificate now. The daemons do this by themselves at two thirds of a certificate's life."""
    configure_logging("renew", level="WARNING")
    take_capitals()
    credentials = asyncio.run(enrolment_client.renew(folder, new_key=new_key))
    emit(describe_credentials(credentials, folder), as_json, render_credentials)


def _render_request(result: Mapping[str, Any]) -> str:
    return (
        f"The key is in {result['folder']}; bring {result['request']} to the certificate authority, have it signed with\n"
        "  fedrep ca sign REQUEST --name NAME --out BUNDLE\n"
        "and install what comes back with\n"
        "  fedrep enroll --install BUNDLE --root-fingerprint FINGERPRINT"
    )
