"""`fedrep silo`: who may be in the federation. Both commands work on the authority's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrep_cli.ca import AsJson, Dns, Folder, Ip, PassphraseFile, check_hosts, read_passphrase, register_path
from fedrep_cli.output import emit
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.certificates import ROOT_FILE, TrustStore
from fedrep_identity.invitations import DEFAULT_HOURS
from fedrep_identity.invitations import invite as write_invitation
from fedrep_identity.names import Identity, Role
from fedrep_identity.register import Register
from fedrep_identity.settings import PublicAddresses

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command()
def invite(
    name: Annotated[str, typer.Argument(help="The silo's name, such as hospital-a.")],
    role: Annotated[Role, typer.Option(help="What the holder may do.")] = Role.SILO,
    hours: Annotated[float, typer.Option(help="How long the invitation is open.", min=0.01, max=720)] = DEFAULT_HOURS,
    dns: Dns = [],  # noqa: B006 - typer copies it
    ip: Ip = [],  # noqa: B006
    ca: Annotated[str | None, typer.Option(help="host:port of the enrolment port, if not as at `ca init`.")] = None,
    server: Annotated[str | None, typer.Option(help="host:port of the federation server, likewise.")] = None,
    folder: Folder = Path("ca"),
    as_json: AsJson = False,
) -> None:
    """Write an invitation: a token for one holder, to be sent by a channel that others cannot read."""
    register = Register(register_path(folder))
    root = (folder / ROOT_FILE).read_bytes()
    if ca is None or server is None:
        public = PublicAddresses.load(folder)
        ca, server = ca or public.enrolment, server or public.server
    invitation = write_invitation(
        register,
        root,
        Identity(name, role, TrustStore(root).federation),
        enrolment_address=ca,
        server_address=server,
        hosts=check_hosts(dns, ip),
        hours=hours,
    )
    result = {"name": name, "role": role.value, "expires": invitation.expires_at, "token": invitation.token()}
    emit(result, as_json, _render_invitation)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="Whose certificates to revoke, and whose invitations to withdraw.")],
    folder: Folder = Path("ca"),
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Revoke every certificate of a name. Servers that follow the authority end its streams within seconds."""
    authority = CertificateAuthority.open(folder, read_passphrase(passphrase_file))
    count = authority.revoke(name)
    emit({"name": name, "revoked": count, "list": folder / "crl.pem"}, as_json, _render_revoked)


def _render_invitation(result: Mapping[str, Any]) -> str:
    return (
        f"Invitation for {result['role']} {result['name']}, open until {result['expires']:%Y-%m-%d %H:%M} UTC, "
        f"for one use. On its machine:\n\n  fedrep join {result['token']}\n"
    )


def _render_revoked(result: Mapping[str, Any]) -> str:
    return (
        f"{result['name']}: {result['revoked']} certificate(s) revoked, invitations withdrawn.\n"
        f"The new list is {result['list']}; copy it to servers that cannot ask the authority."
    )
