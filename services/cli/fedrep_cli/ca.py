"""`fedrep ca`: the consortium's certificate authority, from its first key to its server."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrep.errors import ConflictError, InvalidInputError, SettingsError
from fedrep_cli.output import JSON_HELP, ask, emit
from fedrep_identity.authority import (
    LEAF_DAYS,
    REGISTER_FILE,
    CertificateAuthority,
    issue_credentials,
    refuse_existing,
    request_fingerprint,
)
from fedrep_identity.certificates import REVOCATIONS_FILE, Credentials, TrustStore, load_chain
from fedrep_identity.enrolment_client import split_address
from fedrep_identity.folder import FederationAddresses, pack_bundle
from fedrep_identity.host_names import check_host_name
from fedrep_identity.minting import parse_roles, unlisted_life
from fedrep_identity.names import Identity, Role, check_name, identity_of
from fedrep_identity.register import Hosts, Register
from fedrep_identity.roster import roster_lines, silo_pins
from fedrep_identity.settings import ENVIRONMENT, AuthoritySettings, PublicAddresses
from fedrep_runtime import listening
from fedrep_runtime.files import write_atomically

app = typer.Typer(add_completion=False, no_args_is_help=True)

PASSPHRASE_VARIABLE = "FEDREP_CA_PASSPHRASE"
Folder = Annotated[Path, typer.Option("--folder", envvar="FEDREP_CA__FOLDER", help="The authority's folder.", file_okay=False)]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(help=f"File that holds the passphrase; otherwise {PASSPHRASE_VARIABLE}, otherwise you are asked."),
]
AsJson = Annotated[bool, typer.Option("--json", help=JSON_HELP)]
Dns = Annotated[list[str], typer.Option("--dns", help="A DNS name under which silos dial the server; repeatable.")]
Ip = Annotated[list[str], typer.Option("--ip", help="An IP address under which silos dial the server; repeatable.")]
Days = Annotated[float, typer.Option(help="Life of the certificate in days.", min=0.001, max=365)]


def read_passphrase(file: Path | None, *, confirm: bool = False) -> str:
    """Never from an argument: arguments are visible to every user of the machine."""
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").rstrip("\n")
        except OSError as error:
            raise SettingsError(f"The passphrase file {file} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise SettingsError(
                f"The passphrase file {file} is not text (UTF-8). Name the file that holds the passphrase."
            ) from None
    from_environment = os.environ.get(PASSPHRASE_VARIABLE)
    if from_environment:
        return from_environment
    if not _can_ask():
        raise SettingsError(
            "There is no terminal on which to ask for the passphrase of the certificate authority. "
            f"Set {PASSPHRASE_VARIABLE}, or give --passphrase-file."
        )
    return str(ask("Passphrase of the certificate authority", hide_input=True, confirmation_prompt=confirm))


def _can_ask() -> bool:
    """A passphrase is read from the terminal itself, whatever stdin is."""
    try:
        os.close(os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin is not None and sys.stdin.isatty()
    return True


def check_hosts(dns: list[str], ips: list[str]) -> Hosts:
    for text in ips:
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise InvalidInputError(f"{text!r} is not an IP address; give host names with --dns.") from None
    for text in dns:
        check_host_name(text)
    return Hosts(tuple(dns), tuple(ips))


@app.command()
def init(
    federation: Annotated[str, typer.Argument(help="The federation's name, such as lungs-2026.")],
    folder: Folder = Path("ca"),
    address: Annotated[str, typer.Option(help="Host name under which silos reach this authority.")] = "localhost",
    server: Annotated[str, typer.Option(help="host:port of the federation server.")] = "localhost:8550",
    enrolment_port: Annotated[int, typer.Option(help="Port of --address where silos enrol.", min=1, max=65535)] = 8551,
    certificate_port: Annotated[int, typer.Option(help="Port of --address for renewal.", min=1, max=65535)] = 8552,
    years: Annotated[int, typer.Option(help="Life of the root in years.", min=1, max=30)] = 10,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Make the federation's root: a P-256 key sealed with a passphrase, and its certificate."""
    if address.count(":") == 1:
        raise InvalidInputError(
            f"--address {address}: give the host alone, and ports by --enrolment-port and --certificate-port."
        )
    split_address(server)
    check_name("federation name", federation)
    refuse_existing(folder)
    passphrase = read_passphrase(passphrase_file, confirm=True)
    host = address.strip("[]")
    PublicAddresses(listening.address(host, enrolment_port), listening.address(host, certificate_port), server).save(folder)
    authority = CertificateAuthority.create(folder, federation, passphrase, years=years)
    emit(_describe(authority), as_json, _render_authority)


@app.command()
def intermediate(
    online: Annotated[Path, typer.Argument(help="Folder of the new authority, for the machine that is online.")],
    folder: Folder = Path("ca"),
    years: Annotated[int, typer.Option(help="Life of the intermediate in years.", min=1, max=10)] = 2,
    roles: Annotated[str, typer.Option(help="Whom it may certify, separated by commas.")] = "silo",
    unlisted_days: Annotated[
        int | None,
        typer.Option(
            help="It signs where nobody makes revocation lists (cert-manager): longest life of its certificates, in days. "
            "Servers with require_revocations then need the root's list alone.",
            min=1,
            max=365,
        ),
    ] = None,
    passphrase_file: PassphraseFile = None,
    online_passphrase_file: Annotated[Path | None, typer.Option(help="The new authority's own passphrase.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make an authority under the root that signs online, so that the root can stay offline."""
    root = CertificateAuthority.open(folder, read_passphrase(passphrase_file))
    passphrase = read_passphrase(online_passphrase_file or passphrase_file)
    refuse_existing(online)
    PublicAddresses.load(folder).save(online)
    authority = CertificateAuthority.create_intermediate(
        online, root, passphrase, years=years, roles=parse_roles(roles), unlisted_days=unlisted_days
    )
    emit(_describe(authority), as_json, _render_authority)


@app.command("issuer-secret")
def issuer_secret(
    out: Annotated[
        Path, typer.Argument(help="Folder for tls.key and tls.crt; remove it once the Secret is made.", file_okay=False)
    ],
    folder: Folder = Path("ca"),
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Write an intermediate's key, unsealed, and certificate for an issuer of cert-manager, which then signs in your cluster."""
    authority = CertificateAuthority.open(folder, read_passphrase(passphrase_file))
    secret = authority.issuer_secret()
    if out.exists() and any(out.iterdir()):
        raise ConflictError(f"{out} is not empty; give a new folder.")
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)
    for name, content in secret.items():
        write_atomically(out / name, content)
    roles = sorted(authority.roles)
    longest = unlisted_life(authority.certificate)
    result = {"folder": str(out), "files": sorted(secret), "roles": roles, "unlisted_days": longest and longest.days}
    emit(result, as_json, _render_issuer_secret)


@app.command()
def sign(
    request: Annotated[Path, typer.Argument(help="A request made by `fedrep enroll --request`.", dir_okay=False)],
    name: Annotated[str, typer.Option(help="The name to certify. The request has no say in it.")],
    out: Annotated[Path, typer.Option(help="Where to write the bundle for `fedrep enroll --install`.")],
    role: Annotated[Role, typer.Option(help="The role to certify.")] = Role.SILO,
    dns: Dns = [],  # noqa: B006 - typer copies it
    ip: Ip = [],  # noqa: B006
    days: Days = LEAF_DAYS,
    replace: Annotated[bool, typer.Option(help="The name already has a valid certificate with another key.")] = False,
    folder: Folder = Path("ca"),
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Sign a request that came by file, for a silo without a connection to the authority."""
    data = request.read_bytes()
    authority = CertificateAuthority.open(folder, read_passphrase(passphrase_file))
    if authority.holders(name) - {request_fingerprint(data)} and not replace:
        raise ConflictError(
            f"{name} already holds a valid certificate with another key. If this request is its renewal, confirm with "
            f"--replace; if not, choose another name, or revoke it first (fedrep silo revoke {name})."
        )
    chain = authority.sign(data, Identity(name, role, authority.federation), days, check_hosts(dns, ip))
    write_atomically(out, pack_bundle(chain, authority.root, (folder / REVOCATIONS_FILE).read_bytes()), 0o644)
    leaf = load_chain(chain)[0]
    result = {
        "identity": identity_of(leaf).uri,
        "expires": leaf.not_valid_after_utc,
        "bundle": out,
        "root_fingerprint": authority.trust_store().root_fingerprint.hex(),
    }
    emit(result, as_json, _render_signed)


@app.command("server-cert")
def server_cert(
    name: Annotated[str, typer.Argument(help="The server's name, such as main.")],
    out: Annotated[Path, typer.Option(help="Folder for key, certificate, root and revocation list.")],
    dns: Dns = [],  # noqa: B006
    ip: Ip = [],  # noqa: B006
    days: Days = LEAF_DAYS,
    folder: Folder = Path("ca"),
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Make the federation server's key and certificate here, to be copied to its machine.

    Better where there is a connection: `fedrep silo invite NAME --role server --dns HOST`, so that the key never travels.
    """
    hosts = check_hosts(dns, ip)
    if not hosts:
        raise InvalidInputError("Give the DNS names or addresses that silos will dial, with --dns or --ip.")
    authority = CertificateAuthority.open(folder, read_passphrase(passphrase_file))
    identity = Identity(name, Role.SERVER, authority.federation)
    credentials = issue_credentials(authority, out, identity, hosts.dns, hosts.ips, days)
    public = PublicAddresses.load(folder)
    FederationAddresses(authority.federation, public.server, public.enrolment, public.certificates).save(out)
    emit(describe_credentials(credentials, out), as_json, render_credentials)


@app.command()
def crl(
    upper: Annotated[
        Path | None,
        typer.Option(help="The root's crl.pem, for an intermediate to carry along.", exists=True, dir_okay=False),
    ] = None,
    folder: Folder = Path("ca"),
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Sign the revocation list anew: a root's that lies offline, yearly, then bring it to its intermediates by --upper."""
    authority = CertificateAuthority.open(folder, read_passphrase(passphrase_file))
    if upper is not None:
        authority.take_upper_revocations(upper.read_bytes())
    else:
        authority.publish_revocations()
    own = authority.trust_store().revoked.lists[authority.certificate.subject.public_bytes()]
    carried = authority.upper_revocations()
    result = {"list": folder / REVOCATIONS_FILE, "due": own.next_update, "root_due": carried and carried.next_update}
    emit(result, as_json, _render_revocations)


@app.command("list")
def list_(folder: Folder = Path("ca"), as_json: AsJson = False) -> None:
    """Certificates and invitations, with what has become of them."""
    register, now = Register(register_path(folder)), dt.datetime.now(dt.UTC)
    certificates = [
        {
            "name": issued.name,
            "role": issued.role.value,
            "status": issued.status(now),
            "expires": issued.not_after,
            "serial": f"{issued.serial:x}",
            "fingerprint": issued.fingerprint.hex(),
        }
        for issued in register.certificates()
    ]
    invitations = [
        {"name": entry.name, "role": entry.role.value, "status": entry.status(now), "expires": entry.expires_at}
        for entry in register.invitations()
    ]
    emit({"certificates": certificates, "invitations": invitations}, as_json, _render_list)


@app.command()
def roster(folder: Folder = Path("ca"), as_json: AsJson = False) -> None:
    """The key fingerprints of all valid silos, as a roster file that silos can pin."""
    issued, now = Register(register_path(folder)).certificates(), dt.datetime.now(dt.UTC)
    pins = {name: pin.hex() for name, pin in silo_pins(issued, now).items()}
    emit({"silos": pins}, as_json, lambda _result: roster_lines(issued, now).rstrip(), fold=False)


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="TOML settings; FEDREP_CA__... in the environment wins.")] = None,
    folder: Annotated[Path | None, typer.Option(help="The authority's folder; wins over both.")] = None,
    enrolment_port: Annotated[
        int | None, typer.Option(help="Likewise; otherwise the one told to `ca init`.", min=0, max=65535)
    ] = None,
    certificate_port: Annotated[int | None, typer.Option(help="Likewise.", min=0, max=65535)] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign invitations and renewals online. Run it on the consortium's machine, not on the federation server's."""
    import asyncio

    from fedrep_cli.serving import serve_authority
    from fedrep_runtime.settings import load_settings

    given = {
        "folder": folder,
        "enrolment_port": enrolment_port,
        "certificate_port": certificate_port,
        "passphrase_file": passphrase_file,
    }
    settings = load_settings(AuthoritySettings, config, ENVIRONMENT)
    settings = settings.model_copy(update={name: value for name, value in given.items() if value is not None})
    authority = CertificateAuthority.open(settings.folder, read_passphrase(settings.passphrase_file))
    asyncio.run(serve_authority(authority, settings))


def register_path(folder: Path) -> Path:
    if not (folder / REGISTER_FILE).exists():
        raise SettingsError(f"{folder} holds no certificate authority. Make one with: fedrep ca init.")
    return folder / REGISTER_FILE


def _describe(authority: CertificateAuthority) -> dict[str, Any]:
    return {
        "federation": authority.federation,
        "folder": authority.folder,
        "kind": "intermediate" if authority.chain else "root",
        "roles": sorted(authority.roles),
        "unlisted_days": (longest := unlisted_life(authority.certificate)) and longest.days,
        "root_fingerprint": TrustStore(authority.root).root_fingerprint.hex(),
        "expires": authority.certificate.not_valid_after_utc,
    }


def _render_authority(result: Mapping[str, Any]) -> str:
    return (
        f"Certificate authority of {result['federation']} ({result['kind']}) in {result['folder']}, "
        f"valid until {result['expires']:%Y-%m-%d}.\n"
        f"Root fingerprint (SHA-256): {result['root_fingerprint']}\n"
        "Keep the folder and the passphrase apart, and a backup of both offline.\n"
        "Next: fedrep ca serve, and fedrep silo invite NAME."
    )


def _render_issuer_secret(result: Mapping[str, Any]) -> str:
    folder, days = result["folder"], result["unlisted_days"]
    lists = (
        f"Its certificates may be valid for {days} days."
        if days
        else "cert-manager makes no revocation lists, so servers with require_revocations refuse what it signs; "
        "for those, make the intermediate with --unlisted-days."
    )
    return (
        f"Key and certificate are in {folder}. "
        f"Whoever reads the key can enter the federation as any {' or '.join(result['roles'])}.\n{lists} Next:\n"
        f"  kubectl create secret tls fedrep-ca --cert={folder}/tls.crt --key={folder}/tls.key && shred -u {folder}/tls.key"
    )


def _render_signed(result: Mapping[str, Any]) -> str:
    return (
        f"Signed {result['identity']} until {result['expires']:%Y-%m-%d %H:%M} UTC; bundle in {result['bundle']}.\n"
        "Bring the bundle to the silo, tell it the root's fingerprint by another way, and run there:\n"
        f"  fedrep enroll --install {Path(result['bundle']).name} --root-fingerprint {result['root_fingerprint']}"
    )


def _render_revocations(result: Mapping[str, Any]) -> str:
    carried = f" That of the root, which it carries, is due by {result['root_due']:%Y-%m-%d}." if result["root_due"] else ""
    return (
        f"The new list is {result['list']}; copy it to servers that cannot ask the authority.\n"
        f"A newer one is due by {result['due']:%Y-%m-%d}.{carried}"
    )


def describe_credentials(credentials: Credentials, folder: Path) -> dict[str, Any]:
    return {
        "identity": credentials.identity.uri,
        "name": credentials.identity.name,
        "role": credentials.identity.role.value,
        "folder": folder,
        "expires": credentials.certificate.not_valid_after_utc,
        "fingerprint": credentials.fingerprint.hex(),
    }


def render_credentials(result: Mapping[str, Any]) -> str:
    return (
        f"{result['identity']} is valid until {result['expires']:%Y-%m-%d %H:%M} UTC; key and certificate are in "
        f"{result['folder']}.\nKey fingerprint: {result['fingerprint']}"
    )


def _render_list(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    tables = []
    for title in ("certificates", "invitations"):
        table = Table("name", "role", "status", "expires", title=title.capitalize(), title_justify="left")
        for row in result[title]:
            table.add_row(row["name"], row["role"], row["status"], f"{row['expires']:%Y-%m-%d %H:%M} UTC")
        tables.append(table)
    return Group(*tables)
