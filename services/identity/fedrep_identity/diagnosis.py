"""How far a connection gets, step by step, and what to do where it stops: what `fedrep doctor` shows.

gRPC reports every failure before the first call as "unavailable". These steps are made one by one with plain sockets, so
that a name that does not resolve, a closed port, an expired certificate and a wrong clock look different.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
import ssl
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedrep.errors import CryptoError, FedrepError
from fedrep_identity.certificates import CLOCK_SKEW, REVOCATIONS_FILE, Credentials, TrustStore
from fedrep_identity.enrolment_client import UnreachableError, get_revocations, split_address
from fedrep_identity.folder import FederationAddresses, renewal_time
from fedrep_identity.revocation_file import known_revocations
from fedrep_runtime.proxy import open_connection, proxy_for
from fedrep_runtime.status import reason_of
from fedrep_runtime.tls import channel_options, client_channel_credentials

TIMEOUT = 5.0


class Outcome(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    check: str
    outcome: Outcome
    text: str
    advice: str = ""


# gRPC servers close the connection on a client certificate they do not accept, without saying why.
_NOT_ACCEPTED = (
    "the server closed the connection when it saw this certificate",
    "If `certificate` above failed, start there. Otherwise the server's clock is wrong, it belongs to another federation "
    "(compare root.pem on both sides), or a proxy between ends TLS. The server's log has a line with "
    "CERTIFICATE_VERIFY_FAILED and the reason.",
)


async def diagnose(
    folder: Path, server: str | None = None, health: str | None = None, now: dt.datetime | None = None
) -> list[Finding]:
    """All checks that can be made from this machine; a later one is skipped where an earlier one leaves no ground."""
    now = now or dt.datetime.now(dt.UTC)
    try:
        credentials = Credentials.load(folder)
        identity = credentials.identity
    except FedrepError as error:
        return [Finding("credentials", Outcome.FAILED, str(error), "Enrol with the token you were sent: fedrep enroll.")]
    findings = [Finding("credentials", Outcome.OK, f"{identity.uri} in {folder}"), _key_mode(folder)]
    addresses = _addresses(folder)
    findings += _own_certificate(credentials, folder, now)
    findings += await _authority(addresses.certificates if addresses else "", credentials)
    server = server or (addresses.server if addresses else "")
    if not server:
        findings.append(
            Finding("server", Outcome.SKIPPED, "the federation server's address is not known", "Give --server HOST:PORT.")
        )
        return findings
    reached = await asyncio.to_thread(_reach, server, credentials)
    findings += reached
    if all(finding.outcome is not Outcome.FAILED for finding in reached):
        findings.append(await _health(server, health, credentials))
    else:
        findings.append(Finding("health", Outcome.SKIPPED, "the server was not reached"))
    return findings


def _addresses(folder: Path) -> FederationAddresses | None:
    try:
        return FederationAddresses.load(folder)
    except FedrepError:
        return None


def _key_mode(folder: Path) -> Finding:
    loose = [path.name for path in folder.glob("*key.pem") if path.stat().st_mode & 0o077]
    if loose:
        return Finding(
            "key file",
            Outcome.FAILED,
            f"{', '.join(loose)} can be read by other users of this machine",
            f"chmod 600 {folder}/*key.pem; if others had access, ask for a new invitation and enrol with --replace.",
        )
    return Finding("key file", Outcome.OK, "only its owner can read the private key")


def _own_certificate(credentials: Credentials, folder: Path, now: dt.datetime) -> list[Finding]:
    certificate = credentials.certificate
    end = certificate.not_valid_after_utc
    try:
        known = known_revocations(folder / REVOCATIONS_FILE)
        credentials.check(None, now)  # the certificate first: a list of another authority is then no surprise
        credentials.check(known, now)
        trust = credentials.trust_store(known)
    except CryptoError as error:
        return [Finding("certificate", Outcome.FAILED, str(error))]
    left = f"valid until {end:%Y-%m-%d %H:%M} UTC ({(end - now).days} days)"
    if now > renewal_time(certificate):
        advice = "The daemon renews at two thirds of life; if it runs, see its log for renewal_failed, or run fedrep renew."
        return [Finding("certificate", Outcome.WARNING, f"{left}, renewal is due", advice), _list_age(trust, now)]
    return [Finding("certificate", Outcome.OK, left), _list_age(trust, now)]


def _list_age(trust: TrustStore, now: dt.datetime) -> Finding:
    if not trust.revoked.lists:
        return Finding("revocation list", Outcome.WARNING, "none here yet", "It is fetched at enrolment and renewal.")
    if trust.revoked.overdue(now):
        advice = "Let this machine reach the authority, or copy its newer crl.pem here."
        return Finding("revocation list", Outcome.WARNING, "a newer list was due and has not arrived", advice)
    return Finding("revocation list", Outcome.OK, f"current, {len(trust.revoked)} revoked in all")


async def _authority(address: str, credentials: Credentials) -> list[Finding]:
    """Revocation as of now, and the clock, from the one party that both sides trust."""
    if not address:
        skipped = "the certificate authority's address is not known (air-gapped)"
        return [Finding("revocation", Outcome.SKIPPED, skipped), Finding("clock", Outcome.SKIPPED, skipped)]
    try:
        answer = await get_revocations(address, credentials, timeout=TIMEOUT)
        trust = credentials.trust_store(answer.revocations)
        trust.verify(credentials.chain)
    except UnreachableError:
        advice = (
            "Check the network and that `fedrep ca serve` runs there. Certificates stay valid meanwhile; renewal and news of "
            "revocations wait for it."
        )
        return [
            Finding("revocation", Outcome.WARNING, f"the certificate authority at {address} does not answer", advice),
            Finding("clock", Outcome.SKIPPED, "the certificate authority was not reached"),
        ]
    except FedrepError as error:
        failed = error.reason == "CERTIFICATE_REVOKED"
        return [
            Finding("revocation", Outcome.FAILED if failed else Outcome.WARNING, str(error)),
            Finding("clock", Outcome.SKIPPED, "the certificate authority was not reached"),
        ]
    here = dt.datetime.now(dt.UTC)
    skew = here - dt.datetime.fromtimestamp(answer.unix_seconds, dt.UTC)
    seconds = round(abs(skew.total_seconds()))
    revocation = Finding("revocation", Outcome.OK, f"the authority at {address} lists this certificate as good")
    if abs(skew) > CLOCK_SKEW:
        direction = "ahead of" if skew > dt.timedelta(0) else "behind"
        text = f"this machine's clock is {seconds} s {direction} the authority's"
        return [revocation, Finding("clock", Outcome.FAILED, text, "Set the clock from a time server (NTP).")]
    return [revocation, Finding("clock", Outcome.OK, f"within {max(seconds, 1)} s of the authority's")]


def _reach(address: str, credentials: Credentials) -> list[Finding]:
    findings: list[Finding] = []
    try:
        host, port = split_address(address)
        proxy = proxy_for(host)
        if proxy is None:
            found = sorted({str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
            findings.append(Finding("DNS", Outcome.OK, f"{host} is {', '.join(found)}"))
        else:  # it looks the name up
            findings.append(Finding("proxy", Outcome.OK, f"connections go through {proxy} (from the environment)"))
    except (socket.gaierror, UnicodeError, FedrepError) as error:
        advice = "Check the spelling of the address and this machine's DNS."
        return [Finding("DNS", Outcome.FAILED, f"{address} does not resolve: {error}", advice)]
    try:
        plain = open_connection(host, port, TIMEOUT)
    except OSError as error:
        text = f"{address} does not accept connections: {error}"
        advice = "Check that the server runs, and that no firewall between blocks the port."
        return [*findings, Finding("TCP", Outcome.FAILED, text, advice)]
    findings.append(Finding("TCP", Outcome.OK, f"{address} accepts connections"))
    with plain:
        findings.append(_handshake(plain, host, credentials))
    return findings


def _handshake(plain: socket.socket, host: str, credentials: Credentials) -> Finding:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=credentials.root.decode())
    with tempfile.TemporaryDirectory() as folder:  # the ssl module reads keys from files only
        pair = Path(folder) / "pair.pem"
        pair.touch(0o600)
        pair.write_bytes(credentials.key_pem + credentials.chain)
        context.load_cert_chain(pair)
    try:
        with context.wrap_socket(plain, server_hostname=host) as secured:
            # In TLS 1.3 the server judges the client's certificate after the client's last message: its verdict is the
            # first thing to read, an alert or HTTP/2 settings.
            if not secured.recv(64):
                return Finding("TLS", Outcome.FAILED, *_NOT_ACCEPTED)
            return Finding("TLS", Outcome.OK, f"{secured.version()}, both certificates accepted")
    except ssl.SSLCertVerificationError as error:
        advice = (
            "The server presents a certificate of another federation, for another host name, or out of date. "
            "Check the address and this machine's clock, then ask the server's operator."
        )
        return Finding("TLS", Outcome.FAILED, f"the server's certificate is not acceptable: {error.verify_message}", advice)
    except ConnectionResetError:
        return Finding("TLS", Outcome.FAILED, *_NOT_ACCEPTED)
    except OSError as error:
        advice = "Check that this is the federation server's gRPC port, and that no proxy between ends TLS."
        return Finding("TLS", Outcome.FAILED, f"the handshake failed: {error}", advice)


async def _health(server: str, health: str | None, credentials: Credentials) -> Finding:
    """On the plain health port if one is given; otherwise whether the server answers a call under this certificate."""
    if health:
        channel = grpc.aio.insecure_channel(health)
    else:
        secrets = client_channel_credentials(credentials.root, credentials.key_pair)
        channel = grpc.aio.secure_channel(server, secrets, options=channel_options())
    async with channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return Finding("health", Outcome.OK, "the server answers (its health is served on another port)")
            detail = f"{error.details()} ({reason_of(error) or error.code().name})"
            return Finding("health", Outcome.FAILED, f"the server refuses: {detail}", "See the server's log.")
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return Finding("health", Outcome.OK, "the server says that it is serving")
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return Finding("health", Outcome.FAILED, f"the server says {name}", "Wait for it to start, or see its log.")
