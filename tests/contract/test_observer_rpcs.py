"""Every RPC of the admins' and viewers' contract: what it answers, how it refuses, and that a refusal changes nothing."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from safetensors.numpy import load

from fedrep.errors import FedrepError
from fedrep.protocol.manifests import SignedRunManifest
from fedrep.protocol.model_state import model_hash
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep.wire.v1.observer_pb2_grpc import ObserverServiceStub
from fedrep_runtime.run_config import AggregatorConfig, sign_run
from fedrep_server.operations.tidying import delete_runs_over_since, trim_rounds_before
from tests.harness.live_server import PARAMETERS, SILOS, LiveServer, joined, refusal, stage, wait_for_round, wait_until
from tests.harness.mini_silo import SECONDS, play_round
from tests.harness.people import People

UNKNOWN_RUN = ("NOT_FOUND", "UNKNOWN_RUN")
RUN_OVER = ("FAILED_PRECONDITION", "RUN_OVER")
METHODS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["ObserverService"].methods)


def stub(server: LiveServer, name: str = "admin") -> Any:
    return ObserverServiceStub(server.channel(name))  # type: ignore[no-untyped-call]


def played(server: LiveServer, run: str, rounds: int, **options: Any) -> list[Any]:
    """A run with finished rounds, and its silos."""
    server.create_run(run, **options)
    silos = joined(server, run)
    last = 0
    for number in range(rounds):
        manifest = wait_for_round(server, run, after=last)
        updates = {silo.name: [0.01 * (number + 1)] * PARAMETERS for silo in silos}
        assert play_round(silos, manifest, updates).outcome == federation_pb2.OUTCOME_APPLIED
        last = manifest.round
    return silos


@pytest.mark.parametrize("method", [method for method in METHODS if method not in ("ListRuns", "CreateRun")])
@pytest.mark.parametrize("name", ["", "nobody", "../etc", "x" * 10_000], ids=["empty", "unknown", "path", "long"])
def test_an_unknown_run_is_not_found(server: LiveServer, method: str, name: str) -> None:
    call = getattr(stub(server), method)
    request = getattr(pb, f"{method}Request")(name=name)
    assert refusal(lambda: call(request, timeout=SECONDS)) == UNKNOWN_RUN


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message_are_refused(server: LiveServer, method: str) -> None:
    channel: Any = server.channel("admin")
    path, noise = f"/fedrep.wire.v1.ObserverService/{method}", b"\xff" * 20
    if method == "ListRuns":
        noise = b"\x0a\xff"  # an empty request takes any well-formed bytes; these are not
    if method == "CreateRun":
        refused = refusal(lambda: channel.stream_unary(path)(iter([noise]), timeout=SECONDS))
    elif method in ("WatchRun", "DownloadModel"):
        refused = refusal(lambda: channel.unary_stream(path)(noise, timeout=SECONDS))
    else:
        refused = refusal(lambda: channel.unary_unary(path)(noise, timeout=SECONDS))
    assert refused == ("INVALID_ARGUMENT", "MALFORMED")


def test_what_happened_is_shown(server: LiveServer, run_name: str) -> None:
    silos = played(server, run_name, 3)
    for silo in silos:
        request = federation_pb2.ReportMetricsRequest(run=silo.run, round=3, model_version=3, accuracy=0.5, loss=1.0)
        silo.stub.ReportMetrics(request)
    viewer = stub(server, "viewer")
    listed = next(run for run in viewer.ListRuns(pb.ListRunsRequest()).runs if run.name == run_name)
    assert (listed.state, listed.rounds_applied, listed.rounds_skipped, listed.model_version) == ("running", 3, 0, 3)
    assert listed.bytes_up > 0
    assert listed.bytes_down > listed.bytes_up / 10
    shown = viewer.GetRun(pb.GetRunRequest(name=run_name))
    assert [silo.name for silo in shown.silos] == list(SILOS)
    assert {silo.state for silo in shown.silos} == {"present"}
    assert [model.version for model in shown.models] == [1, 2, 3]
    assert (shown.open_round, shown.phase) == (4, "propose")
    assert shown.dense_bytes_per_silo_round == 8 * PARAMETERS
    rounds = viewer.ListRounds(pb.ListRoundsRequest(name=run_name)).rounds
    assert [round.round for round in rounds] == [1, 2, 3]
    assert all(len(round.buffers) == 2 and round.survivors == 4 and len(round.phase_seconds) == 4 for round in rounds)
    assert list(rounds[2].silo_accuracy) == [0.5, 0.5, 0.5]
    assert rounds[0].epsilon > 0


def test_rounds_are_paged_and_thinned(server: LiveServer, run_name: str) -> None:
    played(server, run_name, 4)
    viewer = stub(server, "viewer")
    page = viewer.ListRounds(pb.ListRoundsRequest(name=run_name, limit=2))
    assert [round.round for round in page.rounds] == [1, 2]
    following = viewer.ListRounds(pb.ListRoundsRequest(name=run_name, from_round=page.next_round, limit=2))
    assert ([round.round for round in following.rounds], following.next_round) == ([3, 4], 0)
    thinned = viewer.ListRounds(pb.ListRoundsRequest(name=run_name, downsample=2)).rounds
    assert len(thinned) == 2
    assert thinned[-1].round == 4


def test_a_watcher_gets_the_past_then_what_happens_and_resumes_where_it_was(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    seen: list[pb.WatchRunResponse] = []
    live = stub(server, "viewer").WatchRun(pb.WatchRunRequest(name=run_name))

    def watch() -> None:
        try:
            for response in live:
                seen.append(response)
        except grpc.RpcError:
            return

    thread = threading.Thread(target=watch)
    thread.start()
    wait_until(lambda: len(seen) == 1)
    assert (seen[0].event.kind, seen[0].event.position) == ("state", 1)
    server.silo("silo-a").join(run_name)
    wait_until(lambda: len(seen) == 2)
    assert (seen[1].event.kind, seen[1].event.silo) == ("joined", "silo-a")
    server.silo("silo-b").join(run_name)
    wait_until(lambda: len(seen) == 3)
    live.cancel()
    thread.join(10)
    resumed = stub(server, "viewer").WatchRun(pb.WatchRunRequest(name=run_name, after=2))
    first = next(resumed)
    resumed.cancel()
    assert (first.event.position, first.event.silo) == (3, "silo-b")
    assert first.summary.name == run_name


def test_a_round_that_ends_comes_with_its_event(server: LiveServer, run_name: str) -> None:
    played(server, run_name, 1)
    for response in stub(server, "viewer").WatchRun(pb.WatchRunRequest(name=run_name), timeout=SECONDS):
        if response.event.kind == "round_applied":
            assert response.round.round == response.event.round == 1
            return


def creation(
    signed: SignedRunManifest, vector: Any, *, sha256: bytes | None = None, dry: bool = False, layout: str = ""
) -> Iterator[Any]:
    data = vector.tobytes()
    header = pb.CreateRunHeader(
        manifest=codec.signed_run_to_wire(signed),
        options=pb.RunOptions(layout=layout),
        dry_run=dry,
        parameters=PARAMETERS,
        sha256=sha256 if sha256 is not None else hashlib.sha256(data).digest(),
    )
    yield pb.CreateRunRequest(header=header)
    if not dry:
        yield pb.CreateRunRequest(chunk=data[:100])
        yield pb.CreateRunRequest(chunk=data[100:])


def test_a_dry_run_says_what_would_happen_and_creates_nothing(server: LiveServer, run_name: str) -> None:
    signed, _, vector = server.signed_run(run_name)
    answer = stub(server).CreateRun(creation(signed, vector, dry=True))
    assert (list(answer.problems), answer.run) == ([], signed.manifest.digest())
    assert refusal(lambda: stub(server).GetRun(pb.GetRunRequest(name=run_name))) == UNKNOWN_RUN


def test_a_run_that_cannot_work_is_not_created_and_every_problem_is_named(server: LiveServer, run_name: str) -> None:
    signed, _, vector = server.signed_run(
        run_name, byzantine_count=2, aggregator=AggregatorConfig(name="no-such-rule"), colluders=3, min_survivors=2
    )
    for dry in (True, False):
        answer = stub(server).CreateRun(creation(signed, vector, dry=dry))
        assert len(answer.problems) >= 3, list(answer.problems)
    assert refusal(lambda: stub(server).GetRun(pb.GetRunRequest(name=run_name))) == UNKNOWN_RUN


def test_creation_is_refused_for_each_wrong_thing(server: LiveServer, run_name: str) -> None:
    signed, _, vector = server.signed_run(run_name)
    admin = server.people.credentials["admin"]
    other = sign_run(signed.manifest, "someone", admin.chain, admin.signing_key)
    forged = SignedRunManifest(signed.manifest, "admin", admin.chain, b"forged")
    silo = server.people.credentials["silo-a"]
    by_silo = sign_run(signed.manifest, "admin", silo.chain, silo.signing_key)
    wrong = np.zeros_like(vector)
    create = stub(server).CreateRun
    cases = {
        ("UNAUTHENTICATED", "WRONG_ADMIN"): lambda: create(creation(other, vector)),
        ("UNAUTHENTICATED", "BAD_SIGNATURE"): lambda: create(creation(forged, vector)),
        ("INVALID_ARGUMENT", "WRONG_MODEL"): lambda: create(creation(signed, wrong)),
        ("INVALID_ARGUMENT", "WRONG_HASH"): lambda: create(creation(signed, vector, sha256=bytes(32))),
        ("INVALID_ARGUMENT", "TRUNCATED"): lambda: create(creation(signed, vector[:50])),
        ("INVALID_ARGUMENT", "TOO_LARGE"): lambda: create(creation(signed, np.concatenate([vector, vector]))),
        ("INVALID_ARGUMENT", "NO_HEADER"): lambda: create(iter([])),
    }
    before = [run.name for run in server.running.coordinator.store.runs()]
    for expected, call in cases.items():
        assert refusal(call) == expected
    assert refusal(lambda: create(creation(by_silo, vector))) == ("UNAUTHENTICATED", "BAD_SIGNATURE")
    assert [run.name for run in server.running.coordinator.store.runs()] == before


def test_a_model_with_nan_is_refused(server: LiveServer, run_name: str) -> None:
    _, config, vector = server.signed_run(run_name)
    broken = vector.copy()
    broken[3] = np.nan
    admin = server.people.credentials["admin"]
    signed = sign_run(config.manifest(PARAMETERS, bytes(32), model_hash(broken)), "admin", admin.chain, admin.signing_key)
    assert refusal(lambda: stub(server).CreateRun(creation(signed, broken))) == ("INVALID_ARGUMENT", "NOT_FINITE")


@pytest.mark.parametrize(
    "layout",
    [
        "{",
        "7",
        "[7]",
        '[["a", 7]]',
        '[["a", [199]]]',
        '[["a", [-10, -20]]]',
        "[[1, [200]]]",
        '[["a", [100]], ["a", [100]]]',
        "[" * 9999,
    ],
)
def test_a_layout_that_would_spoil_every_export_is_refused_at_creation(server: LiveServer, run_name: str, layout: str) -> None:
    signed, _, vector = server.signed_run(run_name)
    for dry in (True, False):
        answer = refusal(lambda dry=dry: stub(server).CreateRun(creation(signed, vector, dry=dry, layout=layout)))
        assert answer == ("INVALID_ARGUMENT", "BAD_LAYOUT")


def test_a_name_is_given_once(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    before = server.snapshot(run_name)
    signed, _, vector = server.signed_run(run_name, rounds=7)
    for dry in (True, False):
        assert refusal(lambda dry=dry: stub(server).CreateRun(creation(signed, vector, dry=dry))) == (
            "ALREADY_EXISTS",
            "NAME_TAKEN",
        )
    assert server.snapshot(run_name) == before


def test_a_paused_run_ends_its_round_starts_no_other_and_goes_on_when_told(server: LiveServer, run_name: str) -> None:
    silos = played(server, run_name, 1)
    admin = stub(server)
    paused = admin.PauseRun(pb.PauseRunRequest(name=run_name, reason="inspection"))
    assert (paused.summary.state, paused.summary.state_reason) == ("paused", "inspection")
    before = server.snapshot(run_name)
    admin.PauseRun(pb.PauseRunRequest(name=run_name, reason="again"))
    assert server.snapshot(run_name) == before
    manifest = wait_for_round(server, run_name, after=1)
    updates = {silo.name: [0.1] * PARAMETERS for silo in silos}
    play_round(silos, manifest, updates)
    assert server.driver(run_name).open is None
    assert admin.ResumeRun(pb.ResumeRunRequest(name=run_name)).summary.state == "running"
    assert wait_for_round(server, run_name, after=2).round == 3


def test_tags_find_a_run_and_change_nothing_that_silos_agreed_to(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    admin = stub(server)
    before = admin.GetRun(pb.GetRunRequest(name=run_name))
    tagged = admin.TagRun(pb.TagRunRequest(name=run_name, tags=["site:nord", "ablation", "ablation"]))
    assert list(tagged.summary.tags) == ["ablation", "site:nord"]
    after = admin.GetRun(pb.GetRunRequest(name=run_name))
    assert list(after.summary.tags) == ["ablation", "site:nord"]
    assert (after.manifest, after.summary.run, after.summary.state) == (before.manifest, before.summary.run, before.summary.state)
    assert after.last_event == before.last_event + 1
    for bad in (["two words"], ["x" * 41], [""], ["<b>"], [f"tag-{i}" for i in range(17)]):
        request = pb.TagRunRequest(name=run_name, tags=bad)
        assert refusal(lambda request=request: admin.TagRun(request)) == ("INVALID_ARGUMENT", "BAD_TAG")
    assert list(admin.ListRuns(pb.ListRunsRequest()).runs[0].tags) == ["ablation", "site:nord"]
    assert list(admin.TagRun(pb.TagRunRequest(name=run_name)).summary.tags) == []


def test_a_stopped_run_skips_its_round_and_is_over_for_good(server: LiveServer, run_name: str) -> None:
    at = stage(server, run_name, "submit")
    admin = stub(server)
    answer = admin.StopRun(pb.StopRunRequest(name=run_name, reason="enough"))
    assert (answer.summary.state, answer.summary.rounds_skipped) == ("stopped", 1)
    header, _ = at.first.update(1)
    assert (header.outcome, header.reason, header.state) == (federation_pb2.OUTCOME_SKIPPED, "enough", "stopped")
    before = server.snapshot(run_name)
    admin.StopRun(pb.StopRunRequest(name=run_name))
    assert refusal(lambda: admin.ResumeRun(pb.ResumeRunRequest(name=run_name))) == RUN_OVER
    assert refusal(lambda: admin.PauseRun(pb.PauseRunRequest(name=run_name))) == RUN_OVER
    assert server.snapshot(run_name) == before


def test_an_excluded_silo_is_out_of_the_next_roster_and_a_readmitted_one_in_again(server: LiveServer, run_name: str) -> None:
    silos = played(server, run_name, 1)
    admin = stub(server)
    wait_for_round(server, run_name, after=1)
    answer = admin.ExcludeSilo(pb.ExcludeSiloRequest(name=run_name, silo="silo-d", reason="broken data"))
    assert (answer.silo.name, answer.silo.state) == ("silo-d", "excluded")
    updates = {silo.name: [0.1] * PARAMETERS for silo in silos}
    play_round([silos[3], *silos[:3]], wait_for_round(server, run_name, after=1), updates)  # not waited for: it goes first
    third = wait_for_round(server, run_name, after=2)
    assert [entry.name for entry in third.roster] == ["silo-a", "silo-b", "silo-c"]
    play_round(silos[:3], third, updates)
    manifest = wait_for_round(server, run_name, after=3)
    assert admin.ReadmitSilo(pb.ReadmitSiloRequest(name=run_name, silo="silo-d")).silo.state == "present"
    play_round(silos[:3], manifest, updates)
    assert [entry.name for entry in wait_for_round(server, run_name, after=4).roster] == list(SILOS)
    before = server.snapshot(run_name)
    for method in ("ExcludeSilo", "ReadmitSilo"):
        request = getattr(pb, f"{method}Request")(name=run_name, silo="nobody")
        assert refusal(lambda method=method, request=request: getattr(admin, method)(request)) == ("NOT_FOUND", "UNKNOWN_SILO")
    assert server.snapshot(run_name) == before


def test_a_roll_back_makes_the_old_parameters_the_newest_version(server: LiveServer, run_name: str) -> None:
    silos = played(server, run_name, 2)
    admin = stub(server)
    wait_for_round(server, run_name, after=2)
    before = server.snapshot(run_name)
    order = server.rollback_request(run_name, 1)
    unknown = pb.RollBackRunRequest(name=run_name, version=99, order=order.order)
    assert refusal(lambda: admin.RollBackRun(unknown)) == ("NOT_FOUND", "UNKNOWN_MODEL")
    assert server.snapshot(run_name) == before
    _, old = server.observer().download(run_name, version=1)
    answer = admin.RollBackRun(order)
    assert answer.summary.model_version == 3
    version, now = server.observer().download(run_name)
    assert version == 3
    assert np.array_equal(load(now)["model"], load(old)["model"])
    header, _ = silos[0].update(3)
    assert (header.outcome, header.reason) == (federation_pb2.OUTCOME_SKIPPED, "the run was rolled back")
    for silo in silos:
        silo.join(run_name)
        silo.fetch_model(3)
    fourth = wait_for_round(server, run_name, after=3)
    assert (fourth.round, fourth.model_version) == (4, 3)
    updates = {silo.name: [0.1] * PARAMETERS for silo in silos}
    assert play_round(silos, fourth, updates).model_version == 4


def test_a_model_is_exported_by_version_by_best_and_by_default(server: LiveServer, run_name: str) -> None:
    silos = played(server, run_name, 2)
    viewer = server.observer("viewer")
    version, data = viewer.download(run_name)
    assert version == 2
    assert np.array_equal(load(data)["model"], np.array(silos[0].model, np.float32))
    call = stub(server, "viewer").DownloadModel
    assert refusal(lambda: call(pb.DownloadModelRequest(name=run_name, best=True))) == ("NOT_FOUND", "NO_BEST_MODEL")
    assert refusal(lambda: call(pb.DownloadModelRequest(name=run_name, version=77))) == ("NOT_FOUND", "UNKNOWN_MODEL")
    evaluator = server.silo("silo-a")
    evaluator.channel = server.channel("evaluator")
    evaluator.__post_init__()
    evaluator.stub.ReportMetrics(
        federation_pb2.ReportMetricsRequest(run=silos[0].run, round=1, model_version=1, accuracy=0.9, loss=0.1)
    )
    version, best = viewer.download(run_name, best=True)
    assert version == 1
    assert not np.array_equal(load(best)["model"], load(data)["model"])
    viewer.close()


def test_watching_ends_when_it_is_cancelled_and_the_server_forgets_it(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    calm = server.tasks()
    streams = [stub(server, "viewer").WatchRun(pb.WatchRunRequest(name=run_name)) for _ in range(20)]
    for stream in streams:
        next(stream)
    assert server.tasks() >= calm + 20
    for stream in streams:
        stream.cancel()
    wait_until(lambda: server.tasks() < calm + 10)
    assert server.driver(run_name).state.value == "waiting"


def test_a_run_that_is_over_is_deleted_for_good_and_what_its_silos_have_spent_stays(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    play_round(joined(server, run_name), wait_for_round(server, run_name), dict.fromkeys(SILOS, [0.01] * PARAMETERS))
    admin = stub(server)
    assert refusal(lambda: admin.DeleteRun(pb.DeleteRunRequest(name=run_name))) == ("FAILED_PRECONDITION", "RUN_NOT_OVER")
    store = server.running.coordinator.store
    before = [row for row in store.spent() if row.run == run_name]
    assert {row.silo for row in before} == set(SILOS)
    assert all(row.proposals == 1 for row in before)
    admin.StopRun(pb.StopRunRequest(name=run_name))
    assert admin.DeleteRun(pb.DeleteRunRequest(name=run_name)).silos_kept == len(SILOS)
    assert refusal(lambda: admin.GetRun(pb.GetRunRequest(name=run_name))) == UNKNOWN_RUN
    assert refusal(lambda: server.silo("silo-a").join(run_name)) == UNKNOWN_RUN
    after = [row for row in store.spent() if row.run == run_name]
    assert [replace(row, deleted_at=None) for row in after] == before
    assert all(row.deleted_at for row in after)
    assert (store.rounds(run_name, 0, 10), store.models(run_name), store.events(run_name, 0, 10)) == ([], [], [])
    assert server.running.coordinator.models.versions(run_name) == []
    assert run_name not in [run.name for run in store.runs()], "a restart does not bring it back"
    with pytest.raises(FedrepError, match="was deleted here"):
        server.create_run(run_name)


def test_runs_that_have_been_over_for_long_go_by_themselves_and_no_others(people: People, tmp_path: Path) -> None:
    with LiveServer(people, tmp_path) as live:
        for name in ("over", "going"):
            live.create_run(name)
        stub(live).StopRun(pb.StopRunRequest(name="over"))
        coordinator = live.running.coordinator

        def left() -> set[str]:
            return {driver.manifest.name for driver in coordinator.drivers}

        live.ask(delete_runs_over_since(coordinator, 0.0))
        assert left() == {"over", "going"}
        live.ask(delete_runs_over_since(coordinator, float("inf")))
        assert left() == {"going"}


def test_details_of_old_rounds_go_by_themselves_and_the_run_goes_on(people: People, tmp_path: Path) -> None:
    with LiveServer(people, tmp_path, retention={"details_days": 1e-9}) as live:  # at its start there is nothing to let go
        silos = played(live, "run", 3)
        store, coordinator = live.running.coordinator.store, live.running.coordinator
        spent, updates = store.spent(), [silos[0].update(number)[1] for number in (1, 2, 3)]

        def details() -> list[int]:
            return [len(found.silos) for found in stub(live).ListRounds(pb.ListRoundsRequest(name="run")).rounds]

        live.ask(trim_rounds_before(coordinator, 0.0))
        assert details()[:3] == [4, 4, 4]
    with LiveServer(people, tmp_path, retention={"details_days": 1e-9}) as live:
        wait_until(lambda: details()[:3] == [0, 0, 0])
        store, again = live.running.coordinator.store, joined(live, "run")
        assert [again[0].update(number)[1] for number in (1, 2, 3)] == updates
        manifest = wait_for_round(live, "run", after=store.run("run").progress.last_round)
        assert play_round(again, manifest, dict.fromkeys(SILOS, [0.01] * PARAMETERS)).outcome == federation_pb2.OUTCOME_APPLIED
        assert [row.proposals for row in store.spent()] == [row.proposals + 1 for row in spent]
