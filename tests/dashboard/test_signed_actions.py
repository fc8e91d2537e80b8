"""What an admin does in the browser, over the REST interface and against a real server: the store afterwards decides."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from fedrep.communication import bits_per_round
from fedrep.errors import RefusedError
from fedrep.privacy import coordinate_epsilon
from fedrep.protocol.manifests import run_manifest_message
from fedrep.protocol.model_state import model_hash
from fedrep.protocol.silo_trust import check_rollback, check_run_signature
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_identity.names import Role
from fedrep_runtime.run_config import RunConfig
from fedrep_silo.trust import FederationTrust
from tests.harness.dashboard_site import ADMIN, VIEWER
from tests.harness.live_server import OUTSIDER, PARAMETERS, SILOS
from tests.harness.steered_site import MODEL, SIGNER, WEIGHTS, SteeredSite, steered_site

CONFIG = {"silos": SILOS, "fraction": 0.2, "aggregator": {"name": "mean"}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SteeredSite]:
    with steered_site(tmp_path_factory.mktemp("steered"), largest_model_mb=1) as made:
        yield made


def asking(site: SteeredSite, token: str = ADMIN) -> httpx.Client:
    return httpx.Client(base_url=f"{site.url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=120)


@pytest.fixture
def client(site: SteeredSite) -> Iterator[httpx.Client]:
    with asking(site) as made:
        yield made


def uploaded(client: httpx.Client, content: bytes, name: str = "init.safetensors") -> httpx.Response:
    return client.post("/models", params={"name": name}, content=content)


def test_the_first_run_starts_from_an_uploaded_model_and_is_signed_by_the_dashboard(
    site: SteeredSite, client: httpx.Client
) -> None:
    file = uploaded(client, MODEL).json()
    assert (file["parameters"], file["tensors"]) == (PARAMETERS, 1)
    body = {"config": CONFIG | {"name": "first"}, "model": {"upload": file["upload"]}}
    assert client.post("/runs", json=body | {"dry_run": True}).json()["problems"] == []
    assert "first" not in [run.name for run in site.server.running.coordinator.store.runs()]
    assert client.post("/runs", json=body).json()["created"] is True
    driver = site.server.driver("first")
    assert np.array_equal(driver.model.state.vector, WEIGHTS.reshape(-1))
    assert driver.manifest.model_hash == model_hash(WEIGHTS.reshape(-1))
    stored = pb.SignedRunManifest.FromString(site.server.running.coordinator.store.run("first").manifest)
    signed = codec.signed_run_from_wire(stored)
    assert signed.admin == SIGNER
    own = site.server.people.credentials[SIGNER].trust_store().verify(signed.certificate, roles=[Role.ADMIN])
    own.verify_key.verify(signed.signature, run_manifest_message(signed.manifest))
    again = client.post("/runs", json=body)
    assert (again.status_code, again.json()["reason"]) == (409, "NAME_TAKEN")


def test_a_model_file_that_cannot_be_used_is_refused_with_what_is_wrong_and_kept_nowhere(
    site: SteeredSite, client: httpx.Client
) -> None:
    good = MODEL
    flat = io.BytesIO()
    np.save(flat, WEIGHTS.astype(np.float64).reshape(-1))
    for content, name, words in (
        (b"junk", "init.safetensors", "init.safetensors is not a safetensors model file"),
        (good[:-4], "short.safetensors", "short.safetensors is not a safetensors"),
        (save({"w": np.ones(3, np.float16)}), "half.safetensors", "w in half.safetensors is float16"),
        (save({"w": np.full(3, np.nan, np.float32)}), "nan.safetensors", "not finite at position 0"),
        (flat.getvalue(), "double.npy", "holds float64"),
        (b"", "empty.npy", "empty.npy is not a .npy file"),
    ):
        answer = uploaded(client, content, name)
        assert answer.status_code == 400
        assert words in answer.json()["detail"]


def test_a_model_file_above_the_limit_is_refused_while_it_comes(client: httpx.Client) -> None:
    large = save({"w": np.zeros(300_000, np.float32)})
    answer = uploaded(client, large)
    assert (answer.status_code, answer.json()["reason"]) == (413, "TOO_LARGE")
    assert "1 MB" in answer.json()["detail"]

    def unannounced() -> Iterator[bytes]:  # no Content-Length says how much will come
        for start in range(0, len(large), 65536):
            yield large[start : start + 65536]

    answer = client.post("/models", params={"name": "sly"}, content=unannounced())
    assert (answer.status_code, answer.json()["reason"]) == (413, "TOO_LARGE")
    assert client.get("/choices").json()["largest_model"] == 1_000_000


def test_a_flat_vector_takes_its_layout_from_a_run_and_is_refused_without_one(site: SteeredSite, client: httpx.Client) -> None:
    start = uploaded(client, MODEL).json()["upload"]
    assert client.post("/runs", json={"config": CONFIG | {"name": "named"}, "model": {"upload": start}}).json()["created"]
    flat = io.BytesIO()
    np.save(flat, WEIGHTS.reshape(-1)[::-1])
    file = uploaded(client, flat.getvalue(), "start.npy").json()
    assert file["tensors"] is None
    body: dict[str, Any] = {"config": CONFIG | {"name": "flat"}, "model": {"upload": file["upload"]}}
    refused = client.post("/runs", json=body)
    assert (refused.status_code, "no names and shapes" in refused.json()["detail"]) == (400, True)
    body["model"]["run"] = "named"
    assert client.post("/runs", json=body).json()["created"] is True
    made, named = site.server.driver("flat"), site.server.driver("named")
    assert made.manifest.layout_hash == named.manifest.layout_hash
    assert np.array_equal(made.model.state.vector, WEIGHTS.reshape(-1)[::-1])
    np.save(flat := io.BytesIO(), WEIGHTS.reshape(-1)[:-1].copy())
    body["model"]["upload"] = uploaded(client, flat.getvalue(), "short.npy").json()["upload"]
    assert "same layout" in client.post("/runs", json=body).json()["detail"]
    assert client.post("/runs", json=body | {"model": {"upload": "0" * 32}}).status_code == 404
    assert client.post("/runs", json=body | {"model": {"run": "named"}}).status_code == 422


def test_a_rehearsal_answers_with_the_facts_one_conclusion_and_the_plan(site: SteeredSite, client: httpx.Client) -> None:
    model = {"upload": uploaded(client, MODEL).json()["upload"]}
    config = CONFIG | {"name": "planned", "rounds": 30, "record_epsilon_at_most": 2.0, "delta_at_most": 1e-5}
    answer = client.post("/runs", json={"config": config, "model": model, "dry_run": True}).json()
    assert answer["preflight"]["conclusion"] == "this run can be created"
    assert next(fact["topic"] for fact in answer["preflight"]["facts"]) == "silos"
    run = RunConfig.model_validate(config).manifest(PARAMETERS, bytes(32), bytes(32))
    counted, plan = bits_per_round(PARAMETERS, run.coordinates, len(SILOS), 2, 16), answer["plan"]
    assert plan["bytes"]["round_up"] == -(-4 * counted.up // 8)
    assert plan["bytes"]["round_down"] == -(-4 * counted.down // 8)
    assert plan["bytes"]["total_up"] == 30 * plan["bytes"]["round_up"]
    assert plan["bytes"]["total_dense"] == 30 * 4 * 8 * PARAMETERS
    assert plan["bytes"]["once"] == 4 * 4 * PARAMETERS
    assert "too small a model" in plan["bytes"]["comparison"]
    per_round = coordinate_epsilon(PARAMETERS, run.coordinates // 4, 0.5)
    assert per_round is not None
    assert (plan["coordinates"]["per_round"], plan["coordinates"]["total"]) == (per_round, 30 * per_round)
    assert "too large to mean much" in plan["coordinates"]["meaning"]
    assert (plan["records"]["epsilon_at_most"], plan["records"]["delta_at_most"]) == (2.0, 1e-5)
    assert "by a factor of 7.4 at most" in plan["records"]["meaning"]
    robust = config | {"byzantine_count": 1, "aggregator": {"name": "geometric_median"}}
    refused = client.post("/runs", json={"config": robust, "model": model}).json()
    assert (refused["created"], "you need 8 silos; you have 4" in refused["preflight"]["conclusion"]) == (False, True)
    assert {"byzantine_count": 0} in [remedy["settings"] for remedy in refused["preflight"]["remedies"]]
    assert "planned" not in [run.name for run in site.server.running.coordinator.store.runs()]


def test_a_clone_has_every_setting_of_its_run(site: SteeredSite, client: httpx.Client) -> None:
    unusual = {
        "rounds": 7, "alpha": 0.25, "reshuffle_every": 3, "quorum": 4, "ring_bits": 32, "downlink_bits": 32,
        "initial_range": 2.0, "largest_range": 8.0, "drills": True, "evaluation_interval": 2, "keep_models": 3, "best": "-loss",
        "record_epsilon_at_most": 3.0, "delta_at_most": 1e-6, "stop": {"target_accuracy": 0.9, "epsilon_budget": 12.0},
        "deadlines": {"propose": 11, "submit": 12, "confirm": 13, "reveal": 14},
        "aggregator": {"name": "trimmed_mean", "settings": {}, "pre": []},
    }  # fmt: skip
    file = uploaded(client, MODEL).json()["upload"]
    body = {"config": CONFIG | unusual | {"name": "odd"}, "model": {"upload": file}}
    assert client.post("/runs", json=body).json()["problems"] == []
    found = client.get("/runs/odd/config").json()
    assert RunConfig.model_validate(found) == RunConfig.model_validate(body["config"])
    clone = {"config": found | {"name": "odd-again"}, "model": {"run": "odd", "version": 0}}
    assert client.post("/runs", json=clone).json()["created"] is True
    first, second = site.server.driver("odd").manifest, site.server.driver("odd-again").manifest
    assert replace(second, name=first.name, buffer_seed=first.buffer_seed) == first


def test_an_amendment_is_shown_first_and_then_waits_signed_for_its_epoch(site: SteeredSite, client: httpx.Client) -> None:
    site.played("amended", 1)
    body = {"add": [OUTSIDER], "remove": [SILOS[0]], "dry_run": True}
    shown = client.post("/runs/amended/amend", json=body).json()
    assert shown == {
        "done": False, "from_round": 10, "silos": [*SILOS[1:], OUTSIDER], "quorum": 3, "replaces": [], "problems": [],
        "conclusion": "this run can be created",
    }  # fmt: skip
    assert site.server.driver("amended").amendment is None
    assert client.post("/runs/amended/amend", json=body | {"dry_run": False}).json() == shown | {"done": True}
    pending = site.server.driver("amended").amendment
    assert pending is not None
    assert (pending.admin, list(pending.manifest.silos), pending.manifest.from_round) == (SIGNER, shown["silos"], 10)
    second = client.post("/runs/amended/amend", json={"add": [OUTSIDER], "dry_run": True}).json()
    assert second["replaces"] == shown["silos"]


def test_an_amendment_that_cannot_work_changes_nothing(site: SteeredSite, client: httpx.Client) -> None:
    site.server.create_run("kept-list")
    before = site.server.snapshot("kept-list")
    answer = client.post("/runs/kept-list/amend", json={"remove": [SILOS[0]], "quorum": 2}).json()
    assert answer["done"] is False
    assert any("quorum 2" in problem for problem in answer["problems"])
    assert "raise the quorum" in answer["conclusion"]
    unknown = client.post("/runs/kept-list/amend", json={"remove": ["silo-y"]})
    assert (unknown.status_code, "'silo-y' is not on the list" in unknown.json()["detail"]) == (409, True)
    assert site.server.snapshot("kept-list") == before


def test_a_rollback_makes_a_kept_version_the_newest_and_carries_the_dashboards_signature(
    site: SteeredSite, client: httpx.Client
) -> None:
    site.played("rolled", 2)
    store = site.server.running.coordinator.store
    wanted = {row.version: row.hash for row in store.models("rolled")}[1]
    assert client.post("/runs/rolled/rollback", json={"version": 1}).json()["model_version"] == 3
    driver = site.server.driver("rolled")
    assert (driver.model.state.version, driver.model.state.hash) == (3, wanted)
    assert driver.rollback is not None
    assert driver.rollback.admin == SIGNER
    unknown = client.post("/runs/rolled/rollback", json={"version": 99})
    assert (unknown.status_code, unknown.json()["reason"]) == (404, "UNKNOWN_MODEL")


def test_a_silo_follows_what_the_dashboard_signed_unless_it_pins_other_admins(site: SteeredSite, client: httpx.Client) -> None:
    site.played("followed", 2)
    assert client.post("/runs/followed/rollback", json={"version": 1}).status_code == 200
    assert client.post("/runs/followed/amend", json={"add": [OUTSIDER]}).json()["done"] is True
    driver, people = site.server.driver("followed"), site.server.people
    amendment = driver.amendment
    assert amendment is not None
    trust = FederationTrust(people.credentials[SILOS[0]].trust_store())
    own, other = (frozenset({people.credentials[name].fingerprint}) for name in (SIGNER, "admin"))
    for pinned in (None, own):
        assert check_rollback(driver.rollback, [driver.manifest], trust, pinned) == driver.rollback is not None
        assert check_run_signature(amendment, trust, pinned) == amendment.manifest
    assert check_rollback(driver.rollback, [driver.manifest], trust, other) is None
    with pytest.raises(RefusedError, match="not among the admins this silo has pinned"):
        check_run_signature(amendment, trust, other)


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("/runs", {"json": {"config": CONFIG | {"name": "mine"}, "model": {"run": "guarded", "version": 0}}}),
    ("/models", {"params": {"name": "mine.safetensors"}, "content": MODEL}),
    ("/runs/guarded/amend", {"json": {"add": [OUTSIDER]}}),
    ("/runs/guarded/rollback", {"json": {"version": 0}}),
    ("/runs/guarded/silos/silo-a/readmit", {}),
]


@pytest.fixture(scope="module")
def guarded(site: SteeredSite) -> SteeredSite:
    site.server.create_run("guarded")
    return site


@pytest.mark.parametrize(("path", "parts"), CHANGES)
def test_a_viewer_can_do_none_of_it_and_nothing_changes(guarded: SteeredSite, path: str, parts: dict[str, Any]) -> None:
    before = guarded.server.snapshot("guarded")
    with asking(guarded, VIEWER) as viewer:
        answer = viewer.post(path, **parts)
    assert (answer.status_code, answer.json()["reason"]) == (403, "NOT_ALLOWED")
    assert guarded.server.snapshot("guarded") == before


@pytest.mark.parametrize(("path", "parts"), CHANGES)
def test_an_admins_cookie_without_the_csrf_token_can_do_none_of_it(
    guarded: SteeredSite, path: str, parts: dict[str, Any]
) -> None:
    before = guarded.server.snapshot("guarded")
    with httpx.Client(base_url=f"{guarded.url}/api/v1", timeout=120) as browser:
        browser.post("/session", json={"token": ADMIN})
        answer = browser.post(path, **parts)
        assert (answer.status_code, answer.json()["reason"]) == (403, "CSRF")
    assert guarded.server.snapshot("guarded") == before


def test_a_dashboard_with_a_viewers_certificate_signs_nothing_and_names_the_command(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with steered_site(tmp_path_factory.mktemp("looking"), Role.VIEWER) as site:
        site.server.create_run("guarded")
        with asking(site) as client:
            session = client.get("/session").json()
            assert (session["may_create"], session["signer"]) == (False, None)
            for path, parts in CHANGES:
                answer = client.post(path, **parts)
                assert (answer.status_code, "role viewer" in answer.json()["detail"]) == (403, True)


def test_the_session_names_the_key_that_silos_may_have_to_pin(site: SteeredSite, client: httpx.Client) -> None:
    own = site.server.people.credentials[SIGNER]
    assert client.get("/session").json()["signer"] == {"name": SIGNER, "fingerprint": own.fingerprint.hex()}
    with asking(site, VIEWER) as viewer:
        assert viewer.get("/session").json()["signer"] is None
