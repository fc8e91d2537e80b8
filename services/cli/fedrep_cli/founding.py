"""The consortium's folder: an authority, the identities and settings of what runs beside it, and invitations for all others.

Every step looks first whether it was done before, so that the whole may be repeated after a kill at any moment: no key and no
settings file that is there is ever written again.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedrep.errors import ConflictError, FedrepError, InvalidInputError, SettingsError
from fedrep_cli.settings_file import commented_toml
from fedrep_cli.steps import DONE, KEPT, Step, settings_step
from fedrep_identity.authority import AUTHORITY_KEY, REGISTER_FILE, CertificateAuthority, certificate_request
from fedrep_identity.certificates import REVOCATIONS_FILE, ROOT_FILE, Credentials, TrustStore
from fedrep_identity.folder import FederationAddresses, finish_installation, install, prepare_request
from fedrep_identity.host_names import is_address
from fedrep_identity.invitations import DEFAULT_HOURS, Invitation, invite
from fedrep_identity.names import Identity, Role, check_name
from fedrep_identity.register import Hosts, Register
from fedrep_identity.settings import ADDRESSES_FILE, PublicAddresses
from fedrep_runtime.files import write_atomically

AUTHORITY, ADMIN, SERVER, DASHBOARD, INVITATIONS = "ca", "credentials", "server", "dashboard", "invitations"
ADMIN_NAME, SERVER_NAME, DASHBOARD_NAME = "admin", "server", "dashboard"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
EDIT = "Relative paths start at the folder in which the command is called. A line that starts with # shows a default."


@dataclass(frozen=True)
class Ports:
    server: int = 8550
    enrolment: int = 8551
    certificates: int = 8552
    health: int = 8553
    metrics: int = 8554
    dashboard: int = 8080


@dataclass(frozen=True)
class Plan:
    """What the person asked for. On a repetition it adds silos; addresses and ports stay as they were first written."""

    folder: Path
    federation: str | None = None
    silos: tuple[str, ...] = ()
    evaluator: str | None = None
    host: str = "localhost"
    server_host: str | None = None  # another machine's, which then gets an invitation
    ports: Ports = Ports()
    hours: float = DEFAULT_HOURS
    cluster: bool = False  # that other machine is a cluster's, which takes a key as a Secret and cannot make its own


class Founding:
    """`steps` does what is left to do. The passphrase is asked for only if something must be signed."""

    def __init__(self, plan: Plan, passphrase: Callable[[bool], str]) -> None:
        self._plan = plan
        self._passphrase = passphrase
        self._ca = plan.folder / AUTHORITY
        for name in (*plan.silos, *([plan.evaluator] if plan.evaluator else [])):
            check_name("name", name)
            if name in (ADMIN_NAME, SERVER_NAME, DASHBOARD_NAME):
                raise InvalidInputError(f"{name!r} is the name of one of the consortium's own; choose another.")

    def steps(self) -> Iterator[Step]:
        yield self._authority_step()
        yield self._identity_step(ADMIN, ADMIN_NAME, Role.ADMIN, "your identity as an admin, used by fedrep run")
        if not self._apart or self._carried:
            text = "the server's identity, to become a Secret of the cluster" if self._carried else "the server's identity"
            yield self._identity_step(f"{SERVER}/identity", SERVER_NAME, Role.SERVER, text, self._server_hosts())
        if not self._apart:
            yield settings_step(self._plan.folder / "server.toml", self._server_settings, "settings of fedrep server")
        yield self._identity_step(DASHBOARD, DASHBOARD_NAME, Role.ADMIN, "the dashboard's identity")
        text = "settings of fedrep dashboard, with the tokens to sign in: keep it to yourself"
        yield settings_step(self._plan.folder / "dashboard.toml", self._dashboard_settings, text, 0o600)
        if self._apart and not self._carried:
            yield self._invitation_step(SERVER_NAME, Role.SERVER, self._server_hosts())
        for name in self._plan.silos:
            yield self._invitation_step(name, Role.SILO)
        if self._plan.evaluator:
            yield self._invitation_step(self._plan.evaluator, Role.EVALUATOR)
        if self._plan.silos:
            yield self._run_step()

    @property
    def root_fingerprint(self) -> str:
        return TrustStore((self._ca / ROOT_FILE).read_bytes()).root_fingerprint.hex()

    @cached_property
    def federation(self) -> str:
        return TrustStore((self._ca / ROOT_FILE).read_bytes()).federation

    @cached_property
    def public(self) -> PublicAddresses:
        return PublicAddresses.load(self._ca)

    @cached_property
    def _apart(self) -> bool:
        """Whether the server runs on another machine than the authority, where its key is then made."""
        return _split(self.public.server)[0] != _split(self.public.enrolment)[0]

    @cached_property
    def _carried(self) -> bool:
        """Whether its key is made here all the same, because it is to be mounted there."""
        return self._apart and (self._plan.cluster or (self._plan.folder / SERVER / "identity").exists())

    @cached_property
    def _register(self) -> Register:
        return Register(self._ca / REGISTER_FILE)

    @cached_property
    def _authority(self) -> CertificateAuthority:
        if (self._ca / AUTHORITY_KEY).exists():
            return CertificateAuthority.open(self._ca, self._passphrase(False))
        if self._plan.federation is None:
            raise SettingsError("Give the federation's name, such as: fedrep init lungs-2026 --silo hospital-a --silo hospital-b")
        check_name("federation name", self._plan.federation)
        return CertificateAuthority.create(self._ca, self._plan.federation, self._passphrase(True))

    def _authority_step(self) -> Step:
        there = (self._ca / AUTHORITY_KEY).exists()
        if not there or not (self._ca / REVOCATIONS_FILE).exists():
            self._authority.publish_revocations()
        if self._plan.federation not in (None, self.federation):
            raise ConflictError(
                f"{self._plan.folder} already holds the federation {self.federation!r}. Leave the name out to go on with it, or "
                "give another --folder."
            )
        if not (self._ca / ADDRESSES_FILE).exists():
            host, ports = _literal(self._plan.host), self._plan.ports
            server = _literal(self._plan.server_host or self._plan.host)
            PublicAddresses(f"{host}:{ports.enrolment}", f"{host}:{ports.certificates}", f"{server}:{ports.server}").save(
                self._ca
            )
        text = f"the certificate authority of {self.federation}; its key is sealed with the passphrase"
        return Step(f"{AUTHORITY}/", KEPT if there else DONE, text)

    def _identity_step(self, place: str, name: str, role: Role, text: str, hosts: Hosts | None = None) -> Step:
        folder, identity = self._plan.folder / place, Identity(name, role, self.federation)
        finish_installation(folder)
        held = _held(folder)
        if held is not None:
            if held.identity != identity or held.root != (self._ca / ROOT_FILE).read_bytes():
                raise ConflictError(
                    f"{folder} holds the certificate of {held.identity.uri}, not of {identity.uri}. Give another --folder."
                )
            return self._kept_or_signed_anew(place, held, text, hosts)
        self._sign(folder, prepare_request(folder), identity, hosts)
        return Step(f"{place}/", DONE, text)

    def _kept_or_signed_anew(self, place: str, held: Credentials, text: str, hosts: Hosts | None) -> Step:
        """A certificate that has ended cannot be renewed over the network, where nobody accepts it any more; its key stays."""
        end = held.certificate.not_valid_after_utc
        if dt.datetime.now(dt.UTC) <= end:
            return Step(f"{place}/", KEPT, text)
        ended = f"its certificate ended on {end:%Y-%m-%d %H:%M} UTC"
        of_key = (issued for issued in self._register.certificates(held.identity.name) if issued.fingerprint == held.fingerprint)
        if any(issued.revoked_at for issued in of_key):
            hint = f"{ended} and it was revoked: move the folder away and repeat fedrep init for a new key"
            return Step(f"{place}/", KEPT, hint)
        self._sign(self._plan.folder / place, certificate_request(held.private_key), held.identity, hosts)
        return Step(f"{place}/", DONE, f"{text}; {ended} and was signed anew for the same key")

    def _sign(self, folder: Path, request: bytes, identity: Identity, hosts: Hosts | None) -> None:
        chain = self._authority.sign(request, identity, hosts=hosts)
        addresses = FederationAddresses(self.federation, self.public.server, self.public.enrolment, self.public.certificates)
        revocations = (self._ca / REVOCATIONS_FILE).read_bytes()
        install(folder, chain, self._authority.root, revocations, addresses=addresses, expected=identity)

    def _invitation_step(self, name: str, role: Role, hosts: Hosts | None = None) -> Step:
        path, now = self.token_file(name), dt.datetime.now(dt.UTC)
        what = f"{INVITATIONS}/{path.name}"
        if any(issued.status(now) == "valid" for issued in self._register.certificates(name)):
            return Step(what, KEPT, f"{role} {name} has enrolled")
        if self._is_open(path, now):
            return Step(what, KEPT, f"the invitation of {role} {name} is still open")
        invitation = invite(
            self._register,
            (self._ca / ROOT_FILE).read_bytes(),
            Identity(name, role, self.federation),
            enrolment_address=self.public.enrolment,
            server_address=self.public.server,
            hosts=hosts,
            hours=self._plan.hours,
        )
        write_atomically(path, f"{invitation.token()}\n".encode())
        return Step(what, DONE, f"invitation for {role} {name}, for one use until {invitation.expires_at:%Y-%m-%d %H:%M} UTC")

    def token_file(self, name: str) -> Path:
        return self._plan.folder / INVITATIONS / f"{name}.token"

    def _is_open(self, path: Path, now: dt.datetime) -> bool:
        try:
            told = Invitation.from_token(path.read_text())
        except (OSError, UnicodeDecodeError, FedrepError):
            return False
        stored = self._register.invitation(told.id)
        return stored is not None and stored.status(now) == "open"

    def _server_hosts(self) -> Hosts:
        """What silos dial, and what this machine's own dashboard and admin may."""
        host, _ = _split(self.public.server)
        names = dict.fromkeys((host, *(() if self._apart else ("localhost", "127.0.0.1"))))
        return Hosts(tuple(n for n in names if not is_address(n)), tuple(n for n in names if is_address(n)))

    def _server_settings(self) -> str:
        from fedrep_server.config import ServerSettings

        host, port = _split(self.public.server)
        values = {
            "host": "127.0.0.1" if host in LOOPBACK else "0.0.0.0",
            "port": port,
            "health_port": self._plan.ports.health,
            "metrics_port": self._plan.ports.metrics,
            "data": str((self._plan.folder / SERVER).resolve()),
            "credentials": str((self._plan.folder / SERVER / "identity").resolve()),
        }
        return commented_toml(ServerSettings, f"Settings of the FedREP server. {EDIT}", values)

    def _dashboard_settings(self) -> str:
        from fedrep_dashboard.settings import DashboardSettings

        _, port = _split(self.public.server)
        values = {
            "port": self._plan.ports.dashboard,
            "server": self.public.server if self._apart else f"localhost:{port}",
            "credentials": str((self._plan.folder / DASHBOARD).resolve()),
            "admin_token": secrets.token_urlsafe(24),
            "viewer_token": secrets.token_urlsafe(24),
        }
        return commented_toml(DashboardSettings, f"Settings of the FedREP dashboard. {EDIT}", values)

    def _run_step(self) -> Step:
        from fedrep_runtime.run_config import RunConfig

        values = {"name": "first-run", "silos": list(self._plan.silos)}
        path = self._plan.folder / "run.toml"
        title = "A FedREP run. Every commented line shows the default."
        step = settings_step(
            path, lambda: commented_toml(RunConfig, title, values), "a first run of these silos, to be looked through"
        )
        missing = [name for name in self._plan.silos if f'"{name}"' not in path.read_text()]
        if missing:
            return Step(
                step.what,
                KEPT,
                f"is left as it is and does not list {', '.join(missing)}: add them there or with fedrep run amend",
            )
        return step


def _held(folder: Path) -> Credentials | None:
    try:
        return Credentials.load(folder)
    except SettingsError as error:
        if error.reason != "NOT_ENROLLED":  # a key that does not fit is no reason to make another over it
            raise
        return None


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _literal(host: str) -> str:
    return f"[{host}]" if ":" in host else host
