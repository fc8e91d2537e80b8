"""Every RPC with every kind of certificate: who gets in, with which status the others stay out, and that they move nothing."""

from __future__ import annotations

import datetime as dt
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedrep.protocol.silo_trust import check_round_signature
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2, observer_pb2
from fedrep.wire.v1.federation_pb2_grpc import FederationServiceStub
from fedrep.wire.v1.observer_pb2_grpc import ObserverServiceStub
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import REVOCATIONS_FILE, Identity, Role
from fedrep_runtime.status import reason_of
from fedrep_server.calls.interceptor import Gate
from fedrep_server.calls.permissions import FEDERATION, OBSERVER, PERMISSIONS
from fedrep_server.calls.permissions_table import page
from fedrep_silo.trust import FederationTrust
from tests.harness.live_server import PARAMETERS, SILOS, LiveServer, refusal, stage, wait_for_round, wait_until
from tests.harness.mini_silo import SECONDS, MiniSilo, play_round
from tests.harness.people import FEDERATION as NAME
from tests.harness.people import People

RUN = "matrix"
AT_THE_DOOR = ("UNAVAILABLE", None)  # the TLS handshake fails: no RPC is even seen
METHODS = {
    **{FEDERATION + method.name: method for method in federation_pb2.DESCRIPTOR.services_by_name["FederationService"].methods},
    **{OBSERVER + method.name: method for method in observer_pb2.DESCRIPTOR.services_by_name["ObserverService"].methods},
}
STRANGERS = {
    "no certificate": AT_THE_DOOR,
    "wrong CA": AT_THE_DOOR,
    "self-signed": AT_THE_DOOR,
    "expired": AT_THE_DOOR,
    "revoked": ("UNAUTHENTICATED", "CERTIFICATE_REVOKED"),
}
ROLES = {"silo-a": Role.SILO, "evaluator": Role.EVALUATOR, "viewer": Role.VIEWER, "admin": Role.ADMIN, "server": Role.SERVER}


@pytest.fixture(scope="module")
def guarded(people: People, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with credentials of its own, a round waiting for its last proposal, and a channel for each stranger."""
    folder = tmp_path_factory.mktemp("guarded")
    shutil.copytree(people.folder / "server", folder / "server")
    with LiveServer(people, folder / "data", credentials=folder / "server") as live:
        live.strangers = strangers(live, people, folder)  # type: ignore[attr-defined]
        stage(live, RUN, "propose")
        yield live


def strangers(live: LiveServer, people: People, folder: Path) -> dict[str, grpc.Channel]:
    root = people.credentials["server"].root
    other = CertificateAuthority.create(folder / "other-ca", NAME, "a passphrase for tests")
    foreign = issue_credentials(other, folder / "foreign", Identity("silo-a", Role.SILO, NAME))
    expired = people.issue("expired", Role.SILO, days=-0.001)
    revoked = people.issue("revoked", Role.SILO)
    people.authority.revoke("revoked")
    shutil.copy(people.authority.folder / REVOCATIONS_FILE, folder / "server" / REVOCATIONS_FILE)
    channels = {
        "no certificate": grpc.secure_channel(live.address, grpc.ssl_channel_credentials(root)),
        "wrong CA": live.connect(foreign),
        "self-signed": grpc.secure_channel(live.address, grpc.ssl_channel_credentials(root, *self_signed())),
        "expired": live.connect(expired),
        "revoked": live.connect(revoked),
    }
    wait_until(lambda: call(channels["revoked"], FEDERATION + "Join")[1] == "CERTIFICATE_REVOKED")
    live._channels.update({f"stranger: {name}": channel for name, channel in channels.items()})
    return channels


def self_signed() -> tuple[bytes, bytes]:
    """A certificate that says silo-a and that nobody else signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "silo-a")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{NAME}/silo/silo-a")]), False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem, certificate.public_bytes(serialization.Encoding.PEM)


def call(channel: grpc.Channel, method: str) -> tuple[str, str | None]:
    """(status, reason) of an empty request; a call that would wait is given up at once."""
    service, name = method.lstrip("/").rsplit("/", 1)
    described = METHODS[method]
    messages = federation_pb2 if service.endswith("FederationService") else observer_pb2
    stub: Any = (FederationServiceStub if messages is federation_pb2 else ObserverServiceStub)(channel)
    request = getattr(messages, described.input_type.name)()
    try:
        answer = getattr(stub, name)(iter([request]) if described.client_streaming else request, timeout=SECONDS)
        if described.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        return error.code().name, reason_of(error)
    return "OK", None


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_stranger_gets_nowhere_and_moves_nothing(guarded: LiveServer, method: str, stranger: str) -> None:
    channels: dict[str, grpc.Channel] = guarded.strangers  # type: ignore[attr-defined]
    before = guarded.snapshot(RUN)
    assert call(channels[stranger], method) == STRANGERS[stranger]
    assert guarded.snapshot(RUN) == before


@pytest.mark.parametrize("name", ROLES)
@pytest.mark.parametrize("method", METHODS)
def test_a_role_may_call_what_the_table_says_and_nothing_else(guarded: LiveServer, method: str, name: str) -> None:
    before = guarded.snapshot(RUN)
    answered = call(guarded.channel(name), method)
    if ROLES[name] in PERMISSIONS[method]:
        # An empty request gets past the gate, and is then refused for what it lacks.
        assert answered in (("OK", None), ("NOT_FOUND", "UNKNOWN_RUN"), ("INVALID_ARGUMENT", "NO_HEADER"))
    else:
        assert answered == ("PERMISSION_DENIED", "WRONG_ROLE")
    assert guarded.snapshot(RUN) == before


def test_another_silos_certificate_does_not_make_its_words_ones_own(guarded: LiveServer) -> None:
    """Each message of silo-d, word for word, sent over the connection of silo-c or of a silo outside the run."""
    driver = guarded.driver(RUN)
    victim = MiniSilo("silo-d", guarded.people.credentials["silo-d"].key_pem, guarded.channel("silo-d"))
    victim.run, victim.rules = driver.run, codec.run_manifest_to_wire(driver.manifest)
    victim.enter(wait_for_round(guarded, RUN))
    sent = victim.proposal(range(victim.manifest.per_silo))
    before = guarded.snapshot(RUN)
    refused = {}
    for thief in ("silo-c", "silo-z"):
        other = MiniSilo("silo-d", guarded.people.credentials[thief].key_pem, guarded.channel(thief))
        refused["join", thief] = refusal(lambda other=other: other.stub.Join(victim.join_request(RUN, victim.run)))
        refused["propose", thief] = refusal(lambda other=other: other.propose(*sent))
    assert refused == {
        ("join", "silo-c"): ("UNAUTHENTICATED", "BAD_SIGNATURE"),
        ("propose", "silo-c"): ("ALREADY_EXISTS", "CONFLICT"),
        ("join", "silo-z"): ("PERMISSION_DENIED", "NOT_ALLOWED"),
        ("propose", "silo-z"): ("PERMISSION_DENIED", "NOT_ALLOWED"),
    }
    assert guarded.snapshot(RUN) == before


def test_every_rpc_is_in_the_table_of_permissions() -> None:
    assert set(METHODS) == set(PERMISSIONS)


def test_the_page_about_permissions_is_that_of_the_code() -> None:
    assert (Path(__file__).parents[2] / "docs" / "permissions.md").read_text() == page()


def test_revocation_ends_a_waiting_call_within_seconds(guarded: LiveServer) -> None:
    """silo-y waits for the consensus of the open round; then its certificate is revoked."""
    people = guarded.people
    credentials = people.issue("silo-y", Role.SILO)
    guarded.create_run("revocation", silos=(*SILOS, "silo-y"), quorum=5)
    silos = [guarded.silo(name) for name in (*SILOS, "silo-y")]
    for silo in silos:
        silo.join("revocation")
    wait_for_round(guarded, "revocation")
    caught: list[tuple[str, str | None]] = []
    channel = guarded.connect(credentials)
    stub: Any = FederationServiceStub(channel)  # type: ignore[no-untyped-call]

    def wait() -> None:
        try:
            list(stub.GetConsensus(federation_pb2.GetConsensusRequest(run=silos[0].run, round=1), timeout=SECONDS))
        except grpc.RpcError as error:
            caught.append((error.code().name, reason_of(error)))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: guarded.waiting("revocation") == 1)
    people.authority.revoke("silo-y")
    shutil.copy(people.authority.folder / REVOCATIONS_FILE, guarded.settings.credentials / REVOCATIONS_FILE)
    thread.join(SECONDS)
    channel.close()
    assert caught == [("UNAUTHENTICATED", "CERTIFICATE_REVOKED")]


async def sweep(gate: Gate) -> None:
    gate.sweep()


def test_a_waiting_call_ends_when_its_certificate_does_though_no_revocation_list_changed(guarded: LiveServer) -> None:
    guarded.create_run("expiry")
    silos = [guarded.silo(name) for name in SILOS]
    for silo in silos:
        silo.join("expiry")
    wait_for_round(guarded, "expiry")
    gate = guarded.running.gate
    ends = guarded.people.credentials["silo-a"].certificate.not_valid_after_utc.timestamp()
    request = federation_pb2.GetSurvivorsRequest(run=silos[0].run, round=1)
    waiting = silos[0].stub.GetSurvivors.future(request, timeout=SECONDS)
    wait_until(lambda: guarded.waiting("expiry") == 1)
    judged, clock = gate.trust.revoked, gate.now
    try:
        gate.now = lambda: ends - 1
        guarded.ask(sweep(gate))
        assert guarded.waiting("expiry") == 1
        gate.now = lambda: ends + 1
        assert refusal(waiting.result) == ("UNAUTHENTICATED", "CERTIFICATE_EXPIRED")
        assert gate.trust.revoked is judged
        assert refusal(lambda: silos[0].stub.GetSurvivors(request, timeout=SECONDS)) == ("UNAUTHENTICATED", "CERTIFICATE_EXPIRED")
    finally:
        gate.now = clock
    assert guarded.waiting("expiry") == 0


def test_a_stream_ends_when_the_list_that_is_required_is_too_old_as_a_new_call_does(people: People, tmp_path: Path) -> None:
    shutil.copytree(people.folder / "server", tmp_path / "server")
    shutil.copy(people.authority.folder / REVOCATIONS_FILE, tmp_path / "server" / REVOCATIONS_FILE)
    people.issue("patient", Role.VIEWER, days=300)
    with LiveServer(people, tmp_path / "data", credentials=tmp_path / "server", require_revocations=True) as live:
        live.create_run("stale")
        stub: Any = ObserverServiceStub(live.channel("patient"))  # type: ignore[no-untyped-call]
        watching = stub.WatchRun(observer_pb2.WatchRunRequest(name="stale"), timeout=SECONDS)
        next(watching)
        gate = live.running.gate
        (known,) = gate.trust.revoked.lists.values()
        gate.now = lambda: known.next_update.timestamp() - 1
        live.ask(sweep(gate))
        assert stub.GetRun(observer_pb2.GetRunRequest(name="stale"), timeout=SECONDS).summary.name == "stale"
        gate.now = lambda: known.next_update.timestamp() + 1
        assert refusal(lambda: list(watching)) == ("UNAUTHENTICATED", "NO_REVOCATION_LIST")
        call = observer_pb2.GetRunRequest(name="stale")
        assert refusal(lambda: stub.GetRun(call, timeout=SECONDS)) == ("UNAUTHENTICATED", "NO_REVOCATION_LIST")


def test_a_new_server_certificate_in_the_middle_of_a_run_loses_no_round(guarded: LiveServer) -> None:
    """New key, new certificate: old connections go on, new ones see it, and rounds are signed with it from then on."""
    guarded.create_run("rotation")
    silos = [guarded.silo(name) for name in SILOS]
    for silo in silos:
        silo.fetch_model(silo.join("rotation").model_version)
    updates = {silo.name: [0.01] * PARAMETERS for silo in silos}
    driver = guarded.driver("rotation")
    for number in (1, 2, 3, 4):
        manifest = wait_for_round(guarded, "rotation", after=number - 1)
        if number == 2:
            folder = guarded.settings.credentials
            fresh = issue_credentials(
                guarded.people.authority,
                folder.parent / "renewed",
                Identity("server", Role.SERVER, NAME),
                dns_names=("localhost",),
                ips=("127.0.0.1",),
            )
            for name in ("key.pem", "cert.pem"):
                (folder.parent / "renewed" / name).replace(folder / name)
        assert play_round(silos, manifest, updates).outcome == federation_pb2.OUTCOME_APPLIED
    wait_for_round(guarded, "rotation", after=4)
    assert (driver.last_round, driver.model.state.version) == (4, 4)
    assert driver.open is not None
    assert driver.open.signed.certificate == fresh.chain
    assert guarded.people.credentials["server"].chain == guarded.running.coordinator.server_certificate
    trust = FederationTrust(guarded.people.credentials["silo-a"].trust_store())
    assert check_round_signature(driver.open.signed, guarded.running.coordinator.server_certificate, trust).round == 5
    again = guarded.connect(guarded.people.credentials["silo-a"])
    assert call(again, FEDERATION + "Join") == ("NOT_FOUND", "UNKNOWN_RUN")
    again.close()
