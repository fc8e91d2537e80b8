"""The REST interface against the real Observer contract on a real port."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from fedrep import record_privacy
from fedrep.protocol.manifests import run_manifest_message
from fedrep.protocol.model_state import model_hash
from fedrep.wire import codec
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_dashboard import view
from fedrep_dashboard.history import History
from fedrep_identity.names import Role
from tests.harness.dashboard_server import ATTACKERS, MODEL, PARAMETERS, VECTOR, ScriptedServer, scripted_run
from tests.harness.dashboard_site import ADMIN, VIEWER, as_admin, insecure, serving, settings_for

DRY = {"created": False, "problems": []}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer().start()
    scripted.add(scripted_run("plain", alpha=0.0, budget=None, aggregator="mean"), 12)
    scripted.add(scripted_run("empty", state="waiting"))
    long = scripted.add(scripted_run("long", rounds=10_000), 10_000)
    long.rounds[1498].accuracy = 0.01  # one bad evaluation in the middle
    scripted.add(scripted_run("digits", private=6), 46)
    yield scripted
    scripted.die()


@pytest.fixture(scope="module")
def site(server: ScriptedServer) -> Iterator[str]:
    with serving(settings_for(server.address, heartbeat_seconds=0.3), insecure(server.address)) as url:
        yield url


@pytest.fixture
def client(site: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{site}/api/v1", headers={"Authorization": f"Bearer {ADMIN}"}, timeout=120) as http:
        yield http


def until(condition: Callable[[], bool]) -> None:
    for _ in range(2400):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("this did not happen within two minutes")


def test_all_runs_are_listed_newest_first(client: httpx.Client) -> None:
    names = [run["name"] for run in client.get("/runs").json()["runs"]]
    assert names[-4:] == ["digits", "long", "empty", "plain"]  # behind those that other tests have made since


def test_an_unknown_run_is_a_404_with_a_sentence(client: httpx.Client) -> None:
    answer = client.get("/runs/nobody")
    assert answer.status_code == 404
    assert answer.json() == {"reason": "NOT_FOUND", "detail": "There is no run 'nobody' on this server."}


def test_totals_add_up_over_all_rounds(client: httpx.Client) -> None:
    rows = client.get("/runs/digits/rounds").json()["rows"]
    up, down = (sum(row[f"bytes_{way}"] for row in rows) for way in ("up", "down"))
    assert (rows[-1]["bytes_up_total"], rows[-1]["bytes_down_total"], rows[-1]["bytes_total"]) == (up, down, up + down)
    assert rows[-1]["epsilon_sum"] == pytest.approx(sum(row["epsilon"] for row in rows))
    first = rows[0]
    assert first["dense_bytes"] == 8 * PARAMETERS * first["proposed"]
    assert first["paper_bytes"] == pytest.approx((96 + 32 / 10) * 480 / 8 * first["proposed"])


def test_a_long_run_is_thinned_but_its_totals_are_not(client: httpx.Client) -> None:
    thin = client.get("/runs/long/rounds", params={"points": 100}).json()
    assert thin["total"] == 10_000
    assert len(thin["rows"]) <= 125
    exported = client.get("/runs/long/charts/bytes").json()
    assert len(exported) == 10_000
    assert thin["rows"][-1]["bytes_total"] == exported[-1]["bytes_total"]
    worst = min(client.get("/runs/long/charts/accuracy").json(), key=lambda row: row["accuracy"] or 1.0)
    assert worst["round"] == 1499
    assert worst["round"] in [row["round"] for row in thin["rows"]], "the thinned chart lost its extreme"


def test_without_guarantee_epsilon_is_absent_and_never_a_number(client: httpx.Client) -> None:
    detail = client.get("/runs/plain").json()
    assert detail["epsilon"]["total"] is None
    assert detail["epsilon"]["meaningful"] is False
    assert all(row["epsilon_sum"] is None for row in client.get("/runs/plain/rounds").json()["rows"])


def test_the_budgets_end_is_projected_from_the_last_rounds_cost(client: httpx.Client) -> None:
    detail = client.get("/runs/digits").json()
    cost = detail["epsilon"]
    left = (cost["budget"] - cost["total"]) / cost["per_round"]
    assert cost["budget_ends_in_round"] == detail["run"]["round"] + int(left)
    assert "which coordinates a silo proposed" in cost["covers"]


def test_buffers_far_from_the_update_are_suspected_and_unopened_ones_discarded(client: httpx.Client) -> None:
    buffers = client.get("/runs/digits/rounds/11").json()["buffers"]
    assert [b["number"] for b in buffers if b["mark"] == "discarded"] == [1]
    attacked = {b["number"] for b in buffers if {"silo-03", "silo-08"} & set(b["members"])} - {1}
    assert {b["number"] for b in buffers if b["mark"] == "suspected"} == attacked


def test_the_attackers_stand_out_by_name_with_what_they_sat_in_and_the_others_do_not(
    client: httpx.Client, server: ScriptedServer
) -> None:
    told = client.get("/runs/digits/suspicion").json()
    assert {one["silo"] for one in told["silos"] if one["stands_out"]} == set(ATTACKERS)
    rounds = [client.get(f"/runs/digits/rounds/{number}").json() for number in range(1, len(server.runs["digits"].rounds) + 1)]
    sat = {
        one["silo"]: [b["mark"] for r in rounds for b in r["buffers"] if one["silo"] in b["members"] and b["mark"] != "discarded"]
        for one in told["silos"]
    }
    for one in told["silos"]:
        assert (one["suspected"], one["judged"]) == (sat[one["silo"]].count("suspected"), len(sat[one["silo"]]))
    assert told["suspected"] == sum(b["mark"] == "suspected" for r in rounds for b in r["buffers"])
    assert all(name in told["sentence"] for name in ATTACKERS)
    assert told["caution"].startswith("A buffer is not a silo")
    assert client.get("/runs/empty/suspicion").json()["silos"] == []


def test_a_cell_of_the_buffers_names_its_members_and_the_weight_of_the_round_that_it_shows(client: httpx.Client) -> None:
    grouped = client.get("/runs/digits/buffers", params={"columns": 10}).json()
    for r, row in enumerate(grouped["details"]):
        for c, cell in enumerate(row):
            if cell is None:
                assert grouped["cells"][r][c] == ""
                continue
            shown = client.get(f"/runs/digits/rounds/{cell['round']}").json()["buffers"][r]
            assert (cell["members"], cell["weight"], grouped["cells"][r][c]) == (shown["members"], shown["weight"], shown["mark"])
            assert grouped["first_round"][c] <= cell["round"] <= grouped["last_round"][c]


def test_an_admin_tags_a_run_and_a_bad_tag_is_refused_in_words(client: httpx.Client) -> None:
    assert client.post("/runs/plain/tags", json={"tags": ["night", "baseline"]}).json()["tags"] == ["baseline", "night"]
    until(
        lambda: [run["tags"] for run in client.get("/runs").json()["runs"] if run["name"] == "plain"] == [["baseline", "night"]]
    )
    answer = client.post("/runs/plain/tags", json={"tags": ["two words"]})
    assert (answer.status_code, "one word of at most 40" in answer.json()["detail"]) == (400, True)
    looking = {"Authorization": f"Bearer {VIEWER}"}
    assert client.post("/runs/plain/tags", json={"tags": []}, headers=looking).status_code == 403


def test_the_pace_is_that_of_the_latest_rounds_and_says_what_is_left(client: httpx.Client, server: ScriptedServer) -> None:
    pace, rounds = client.get("/runs/digits").json()["pace"], server.runs["digits"].rounds
    ended = rounds[-1].started_at + sum(rounds[-1].phase_seconds)
    assert (pace["started_at"], pace["ended_at"]) == (rounds[0].started_at, pytest.approx(ended))
    assert pace["seconds"] == pytest.approx(ended - rounds[0].started_at)
    rate = 20 / (ended - rounds[-20].started_at)
    assert pace["rounds_per_hour"] == pytest.approx(3600 * rate)
    assert pace["seconds_left"] == pytest.approx((60 - len(rounds)) / rate)
    assert set(client.get("/runs/empty").json()["pace"].values()) == {None}


def test_the_events_of_a_round_are_found_also_when_the_dashboard_no_longer_keeps_them(
    client: httpx.Client, server: ScriptedServer
) -> None:
    for run, number in (("digits", 22), ("long", 3), ("long", 9_999)):
        told = client.get(f"/runs/{run}/rounds/{number}/events").json()["events"]
        log = [entry.event for entry in server.runs[run].log if entry.event.round == number]
        assert [event["text"] for event in told] == [event.text for event in log]
        assert told


def test_a_round_knows_its_neighbours(client: httpx.Client) -> None:
    neighbours = [(r["previous"], r["following"]) for r in (client.get(f"/runs/digits/rounds/{n}").json() for n in (1, 20, 46))]
    assert neighbours[:2] == [(None, 2), (19, 21)]
    assert neighbours[2][0] == 45


def test_heat_maps_have_one_column_per_round_until_they_must_group(client: httpx.Client) -> None:
    short = client.get("/runs/digits/attendance").json()
    assert short["first_round"] == short["last_round"] == list(range(1, 47))
    assert len(short["rows"]) == 10
    assert all(len(row) == 46 for row in short["cells"])
    grouped = client.get("/runs/long/buffers", params={"columns": 50}).json()
    assert (grouped["first_round"][0], grouped["last_round"][-1], len(grouped["first_round"])) == (1, 10_000, 50)
    latest = client.get("/runs/long/attendance", params={"columns": 50, "last": 50}).json()
    assert latest["first_round"] == list(range(9_951, 10_001))


def test_a_group_of_rounds_shows_its_worst(client: httpx.Client) -> None:
    cells = client.get("/runs/long/attendance", params={"columns": 10}).json()["cells"]
    assert {word for row in cells for word in row} == {"dropped"}


@pytest.mark.parametrize(
    "chart",
    ["accuracy", "loss", "metrics", "bytes", "epsilon", "health", "phases", "buffers", "silos", "records", "suspicion", "events"],
)
def test_every_chart_exports_the_same_table_as_csv_and_json(client: httpx.Client, chart: str) -> None:
    records = client.get(f"/runs/digits/charts/{chart}").json()
    answer = client.get(f"/runs/digits/charts/{chart}", params={"format": "csv"})
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(lines) == len(records) > 0
    assert list(lines[0]) == list(records[0])
    assert answer.headers["content-disposition"] == f'attachment; filename="digits-{chart}.csv"'


def test_no_word_of_an_evaluator_is_a_formula_in_a_spreadsheet(client: httpx.Client, server: ScriptedServer) -> None:
    formula = '=HYPERLINK("https://example.org")'
    server.add(scripted_run("formula"), 2).rounds[0].metrics[formula] = 0.5
    text = client.get("/runs/formula/charts/metrics", params={"format": "csv"}).text
    assert next(csv.reader(io.StringIO(text))) == ["round", f"'{formula}", "auroc"]
    assert client.get("/runs/formula/charts/metrics").json()[0][formula] == 0.5


def test_the_evaluators_own_figures_are_shown_with_the_run_and_its_rounds(client: httpx.Client) -> None:
    shown = client.get("/runs/digits").json()["run"]["metrics"]
    last = client.get("/runs/digits/charts/metrics").json()[-1]
    assert list(shown) == ["auroc"]
    assert shown["auroc"] == pytest.approx(last["auroc"])


def test_what_silos_say_about_their_records_comes_by_silo_and_round_and_silence_is_not_none(client: httpx.Client) -> None:
    detail = client.get("/runs/digits").json()
    largest = 0.75 * math.sqrt(detail["run"]["round"])
    assert detail["run"]["records"] == {"epsilon": pytest.approx(largest), "delta": 1e-5, "reporting": 6, "without": 1}
    assert detail["records"] == {"covers": record_privacy.COVERS, "epsilon_at_most": 8.0, "delta_at_most": 1e-5}
    assert detail["settings"]["record_epsilon_at_most"] == 8.0
    silos = {silo["name"]: silo for silo in client.get("/runs/digits/silos").json()["silos"]}
    assert (silos["silo-06"]["record_epsilon"], silos["silo-06"]["record_budget"]) == (pytest.approx(largest), 8.0)
    assert [(silos[name]["record_epsilon"], silos[name]["record_none"]) for name in ("silo-07", "silo-08")] == [
        (None, True),
        (None, False),
    ]
    row = client.get("/runs/digits/rounds").json()["rows"][3]
    assert row["records"] == {f"silo-{n + 1:02}": pytest.approx(2 * (0.5 + 0.05 * n)) for n in range(6)}
    told = [line for line in client.get("/runs/digits/charts/records").json() if line["round"] == 4]
    assert [line["silo"] for line in told] == [f"silo-{n:02}" for n in range(1, 8)]
    assert told[-1]["record_epsilon"] == "none"
    there = client.get("/runs/digits/rounds/4").json()["silos"]
    assert [(silo["record_epsilon"] is None, silo["record_none"]) for silo in there[5:8]] == [
        (False, False),
        (True, True),
        (True, False),
    ]
    quiet = client.get("/runs/plain").json()
    assert quiet["run"]["records"] == {"epsilon": None, "delta": None, "reporting": 0, "without": 0}
    assert quiet["records"]["epsilon_at_most"] is None


def test_runs_are_compared_in_one_table(client: httpx.Client) -> None:
    query = {"run": ["digits", "plain"]}
    table = client.get("/compare/accuracy", params=query).json()
    assert list(table[0]) == ["round", "digits", "plain"]
    assert table[20]["plain"] is None
    overlay = client.get("/compare", params=query).json()["runs"]
    assert [item["run"]["name"] for item in overlay] == ["digits", "plain"]


def test_old_events_are_fetched_from_the_server(client: httpx.Client) -> None:
    newest = client.get("/runs/long/events", params={"limit": 5}).json()
    assert [e["position"] for e in newest["events"]] == list(range(newest["last_event"] - 4, newest["last_event"] + 1))
    oldest = client.get("/runs/long/events", params={"limit": 10, "before": 6}).json()["events"]
    assert [e["position"] for e in oldest] == [1, 2, 3, 4, 5]
    assert oldest[0]["text"] == "silo-01 joined."


def test_silos_are_shown_without_anything_of_their_values(client: httpx.Client) -> None:
    silo = client.get("/runs/digits/silos").json()["silos"][0]
    assert silo["name"] == "silo-01"
    assert not {"accuracy", "loss", "gradient", "values", "distance"} & set(silo)


def test_an_admin_pauses_resumes_and_stops_a_run(client: httpx.Client, server: ScriptedServer) -> None:
    server.add(scripted_run("steered"), 1)
    assert client.post("/runs/steered/pause", json={"reason": "maintenance"}).json()["state"] == "paused"
    assert client.get("/runs/steered").json()["run"]["state_reason"] == "maintenance"
    assert client.post("/runs/steered/resume").json()["state"] == "running"
    assert client.post("/runs/steered/silos/silo-02/exclude", json={"reason": "x"}).json()["state"] == "excluded"
    assert client.post("/runs/steered/silos/silo-02/readmit").json()["state"] == "present"
    assert client.post("/runs/steered/stop", json={"reason": "done"}).json()["state"] == "stopped"
    refused = client.post("/runs/steered/resume")
    assert refused.status_code == 409
    assert "stopped for good" in refused.json()["detail"]


def test_a_run_is_created_signed_and_with_the_kept_model(server: ScriptedServer, tmp_path: Path) -> None:
    connection = as_admin(server.address, tmp_path)
    header = {"Authorization": f"Bearer {ADMIN}"}
    limits = {"record_epsilon_at_most": "8", "delta_at_most": "1e-5"}  # as the form sends them
    config = {"name": "fresh", "silos": [f"silo-{i:02}" for i in range(1, 11)], "byzantine_count": 2, **limits}
    body = {"config": config, "model": {"run": "digits", "version": 0}}
    with (
        serving(settings_for(server.address), connection) as url,
        httpx.Client(base_url=f"{url}/api/v1", headers=header, timeout=120) as http,
    ):
        assert http.get("/session").json()["may_create"] is True
        bad = http.post("/runs", json=body | {"config": config | {"byzantine_count": 5, "buffer_size": 9}})
        assert bad.json()["created"] is False
        assert len(bad.json()["problems"]) > 1, "all problems at once"
        assert http.post("/runs", json=body | {"dry_run": True}).json().items() >= DRY.items()
        assert server.created == []
        assert http.post("/runs", json=body).json()["created"] is True
        assert http.post("/runs", json=body | {"model": {"run": "digits", "version": 7}}).status_code == 404
    (sent, received) = server.created[0]
    assert received == VECTOR.tobytes()
    signed = codec.signed_run_from_wire(sent.manifest)
    assert signed.manifest.model_hash == model_hash(VECTOR)
    assert (signed.manifest.record_epsilon_at_most, signed.manifest.delta_at_most) == (8.0, 1e-5)
    assert connection.credentials is not None
    key = connection.credentials.trust_store().verify(signed.certificate, roles=[Role.ADMIN]).verify_key
    key.verify(signed.signature, run_manifest_message(signed.manifest))


def test_a_dashboard_without_an_admin_key_creates_nothing(client: httpx.Client) -> None:
    body = {"config": {"name": "fresh", "silos": ["a", "b"]}, "model": {"run": "digits", "version": 0}}
    answer = client.post("/runs", json=body)
    assert (answer.status_code, answer.json()["reason"]) == (403, "NOT_ALLOWED")


def test_a_kept_model_is_downloaded_whole(client: httpx.Client) -> None:
    answer = client.get("/runs/digits/models/0")
    assert answer.content == MODEL
    assert client.get("/runs/digits/models/9").status_code == 404


def test_a_viewer_looks_but_does_not_steer(site: str, server: ScriptedServer) -> None:
    with httpx.Client(base_url=f"{site}/api/v1", headers={"Authorization": f"Bearer {VIEWER}"}) as viewer:
        assert viewer.get("/runs").status_code == 200
        before = list(server.calls)
        answer = viewer.post("/runs/digits/stop", json={"reason": "mine"})
        assert (answer.status_code, answer.json()["reason"]) == (403, "NOT_ALLOWED")
        assert server.calls == before


def events_of(stream: httpx.Response) -> Iterator[dict[str, str]]:
    found: dict[str, str] = {}
    for line in stream.iter_lines():
        if line:
            key, _, value = line.partition(": ")
            found[key] = value
        elif found:
            yield found
            found = {}


def test_a_round_arrives_live_and_a_broken_stream_resumes_where_it_was(client: httpx.Client, server: ScriptedServer) -> None:
    run = server.add(scripted_run("live"), 3)
    position = client.get("/runs/live/rounds").json()["last_event"]
    with client.stream("GET", "/runs/live/live", params={"after": position}) as stream:
        server.play_round(run)
        rows = (json.loads(e["data"]) for e in events_of(stream) if e["event"] == "round")
        assert next(row for row in rows if row["round"] > 3)["round"] == 4
    for _ in range(3):
        server.play_round(run)
    headers = {"Last-Event-ID": str(position + 1)}
    with client.stream("GET", "/runs/live/live", params={"after": 0}, headers=headers) as stream:
        positions = []
        for event in events_of(stream):
            if event["event"] == "event":
                positions.append(int(event["id"]))
            if len(positions) == 3:
                break
    assert positions == [position + 2, position + 3, position + 4], "resuming repeats nothing and misses nothing"


def test_a_stream_that_cannot_resume_asks_the_page_to_load_again(client: httpx.Client) -> None:
    with client.stream("GET", "/runs/long/live", params={"after": 1}) as stream:
        assert any(event["event"] == "reset" for event, _ in zip(events_of(stream), range(5), strict=False))


def test_a_silent_stream_has_a_heartbeat(client: httpx.Client) -> None:
    with client.stream("GET", "/runs/empty/live") as stream:
        assert any(event["event"] == "ping" for event, _ in zip(events_of(stream), range(6), strict=False))


def test_a_late_evaluation_changes_its_round(client: httpx.Client, server: ScriptedServer) -> None:
    run = server.add(scripted_run("evaluated"), 3)
    assert client.get("/runs/evaluated/rounds").json()["rows"][1]["accuracy"] != 0.5
    run.rounds[1].accuracy = 0.5
    server.say(run, "metrics", "Round 2 evaluated.", item=run.rounds[1])
    until(lambda: client.get("/runs/evaluated/rounds").json()["rows"][1]["accuracy"] == 0.5)


def test_silos_reports_that_come_without_an_event_reach_the_open_page(client: httpx.Client, server: ScriptedServer) -> None:
    run = server.add(scripted_run("reported"), 3)
    position = client.get("/runs/reported/rounds").json()["last_event"]
    with client.stream("GET", "/runs/reported/live", params={"after": position}) as stream:
        del run.rounds[2].silo_accuracy[:]
        run.rounds[2].silo_accuracy.extend([0.1, 0.2, 0.3])
        rows = (json.loads(e["data"]) for e in events_of(stream) if e["event"] == "round")
        assert next(row for row in rows if row["silo_accuracy_median"] == 0.2)["round"] == 3


def test_a_server_that_refuses_the_dashboard_is_quoted_not_called_unreachable() -> None:
    scripted = ScriptedServer().start()
    scripted.refusal = "The certificate of viewer board was revoked."
    header = {"Authorization": f"Bearer {VIEWER}"}
    with (
        serving(settings_for(scripted.address), insecure(scripted.address)) as url,
        httpx.Client(base_url=f"{url}/api/v1", headers=header, timeout=120) as http,
    ):
        until(lambda: http.get("/status").json()["server"]["problem"] == scripted.refusal)
        answer = http.get("/runs")
        assert (answer.status_code, answer.json()["detail"]) == (502, scripted.refusal)
        scripted.refusal = ""
        until(lambda: http.get("/status").json()["server"]["reachable"])
    scripted.die()


def test_while_the_server_is_away_the_last_figures_stay_and_its_return_is_noticed() -> None:
    scripted = ScriptedServer().start()
    run = scripted.add(scripted_run("digits"), 5)
    header = {"Authorization": f"Bearer {VIEWER}"}
    with (
        serving(settings_for(scripted.address), insecure(scripted.address)) as url,
        httpx.Client(base_url=f"{url}/api/v1", headers=header, timeout=120) as http,
    ):
        assert http.get("/runs/digits/rounds").json()["total"] == 5
        assert http.get("/runs/digits/events").json()["last_event"] == run.log[-1].event.position
        scripted.die()
        until(lambda: not http.get("/status").json()["server"]["reachable"])
        assert http.get("/runs/digits").json()["run"]["round"] == 5
        assert http.get("/runs").json()["runs"][0]["name"] == "digits"
        unknown = http.get("/runs/other")
        assert (unknown.status_code, unknown.json()["reason"]) == (503, "SERVER_UNREACHABLE")
        scripted.play_round(run)
        scripted.start()
        until(lambda: http.get("/status").json()["server"]["reachable"])
        until(lambda: http.get("/runs/digits/rounds").json()["total"] == 6)
        scripted.die()
        another = scripted_run("digits")
        another.summary.run = b"another run of that name".ljust(32)
        scripted.add(another, 2)
        scripted.start()
        until(lambda: http.get("/runs/digits/rounds").json()["total"] == 2)
    scripted.die()


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_figure_that_is_no_number_is_shown_as_none_in_summaries_and_rounds_alike(loss: float) -> None:
    assert view.run_of(pb.RunSummary(loss=loss)).loss is None
    history = History()
    history.put(pb.Round(round=1, loss=loss))
    assert history.rows()[0].loss is None
