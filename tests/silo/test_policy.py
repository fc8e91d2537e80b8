"""What a silo's operator decides, and the daemon keeps to: policy, hours, budget, drills, figures that leave, the audit."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedrep.errors import RefusedError, SettingsError
from fedrep.privacy import CoordinateRelease, Ledger
from fedrep_silo.audit import Audit
from fedrep_silo.config import DrillSettings, PolicySettings
from fedrep_silo.ledgers import LedgerFolder
from fedrep_silo.line import Line
from tests.harness.federation import Federation, StubTrainer
from tests.harness.scenarios import confirmed_rounds, finish, finish_in_step, serve


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("policy"), silos=4)


REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "smallest_buffer": ({"smallest_buffer": 3}, {}, "smaller than the 3"),
    "least_alpha": ({"least_alpha": 0.9}, {}, "0.9 this silo asks for"),
    "largest_fraction": ({"largest_fraction": 0.1}, {}, "above the allowed 0.1"),
    "smallest_range": ({"smallest_range": 0.5}, {}, "below the 0.5"),
    "allowed_runs": ({"allowed_runs": ("another",)}, {}, "not among the runs"),
    "model_hash": ({"model_hash": "00" * 32}, {}, "not the one this silo expects"),
    "allow_drills": ({}, {"drills": True}, "attack drills"),
}


@pytest.mark.parametrize("field", REFUSALS)
def test_a_run_outside_the_policy_is_refused_with_the_reason_in_log_and_events(
    federation: Federation, lines: list[Any], field: str
) -> None:
    policy, options, reason = REFUSALS[field]

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, **options)
        (ended,) = await finish(federation.daemon(0, run, policy=PolicySettings(**policy)))
        assert isinstance(ended, RefusedError)
        assert reason in str(ended)
        (event,) = await federation.events(run, "problem")
        assert reason in event.text
        status = await federation.status(run)
        assert status.silos[0].state == "absent", "it never joined"
        assert reason in status.silos[0].problem

    serve(federation, scenario, f"policy-{field}")
    assert any(line["event"] == "run_refused" and reason in line["why"] for line in lines)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [({"smallest_roster": 5}, "roster of 4 is smaller"), ({"roster_file": "pins"}, "not in this silo's pinned roster")],
)
def test_a_round_outside_the_policy_is_refused_with_the_reason(
    federation: Federation, policy: dict[str, Any], reason: str
) -> None:
    pins = federation.folder / "pins.txt"
    pins.write_text("# only one silo is trusted\n" + "ab" * 32 + "\n")
    if "roster_file" in policy:
        policy = {"roster_file": pins}

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1, quorum=3)
        federation.not_waiting_for(0, run)
        careful = federation.daemon(0, run, policy=PolicySettings(**policy))
        assert await finish(careful, *(federation.daemon(n, run) for n in (1, 2, 3))) == [None] * 4
        (event,) = await federation.events(run, "problem")
        assert reason in event.text
        assert careful.state.journal.ledger.rounds == 0
        audit = [json.loads(line) for line in (careful.folder.folder / "audit.jsonl").read_text().splitlines()]
        assert not any(entry["what"] in ("ProposeCoordinates", "ConfirmSurvivors", "RevealShares") for entry in audit)

    serve(federation, scenario, f"round-policy-{next(iter(policy))}")


def test_outside_its_hours_a_silo_trains_nothing_but_holds_shares(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1, quorum=3)
        federation.not_waiting_for(0, run)
        trainer = StubTrainer(0)
        asleep = federation.daemon(0, run, trainer, policy=PolicySettings(hours=(0, 0)))
        assert await finish_in_step(asleep, *(federation.daemon(n, run) for n in (1, 2, 3))) == [None] * 4
        assert trainer.trained_rounds == []
        assert confirmed_rounds(asleep) == {1}

    serve(federation, scenario, "hours")


def test_a_spent_epsilon_budget_stops_the_silo_and_it_says_so(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, quorum=3)
        federation.not_waiting_for(0, run, in_rounds=[2, 3])
        frugal = federation.daemon(0, run, policy=PolicySettings(epsilon_budget=8.0))  # one proposal costs about 5.2
        ended = await finish_in_step(frugal, *(federation.daemon(n, run) for n in (1, 2, 3)))
        assert isinstance(ended[0], RefusedError)
        assert "budget of 8" in str(ended[0])
        assert ended[1:] == [None] * 3
        assert frugal.state.journal.ledger.rounds == 1
        assert confirmed_rounds(frugal) == {1, 2}, "in the round it declines it is still a holder"
        assert any("budget of 8" in event.text for event in await federation.events(run, "problem"))
        status = await federation.status(run)
        assert status.silos[0].state == "left"
        assert status.silos[0].epsilon_budget == 8.0
        assert status.summary.rounds_applied == 3

    serve(federation, scenario, "budget")


def test_a_silo_that_reports_nothing_says_why_it_refuses_without_its_own_figures(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run)
        reason = ""
        for report in ("none", "counts"):
            silent = federation.daemon(0, run, policy=PolicySettings(largest_fraction=0.0123), report=report)
            (ended,) = await finish(silent)
            assert isinstance(ended, RefusedError)
            assert "0.0123" in str(ended)
            reason = ended.reason
        told = [event.text for event in await federation.events(run, "problem")]
        assert [f"refused ({reason})" in text for text in told] == [True, False]
        assert ["0.0123" in text for text in told] == [False, True]

    serve(federation, scenario, "silent")


def test_a_drill_is_refused_unless_the_run_allows_it_and_is_shown_where_it_does(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run)
        (ended,) = await finish(federation.daemon(0, run, drill=DrillSettings(attack="bitflip")))
        assert isinstance(ended, RefusedError)
        assert ended.reason == "NO_DRILLS"
        allowed = PolicySettings(allow_drills=True)
        await federation.create_run(f"{run}-allowed", drills=True)
        attacker = federation.daemon(0, f"{run}-allowed", drill=DrillSettings(attack="bitflip"), policy=allowed, report="none")
        honest = [federation.daemon(n, f"{run}-allowed", policy=allowed) for n in (1, 2, 3)]
        assert await finish(attacker, *honest) == [None] * 4
        status = await federation.status(f"{run}-allowed")
        assert [silo.drill for silo in status.silos] == ["bitflip", "", "", ""]

    serve(federation, scenario, "drill")


def test_a_drill_that_cannot_be_played_is_refused_before_anything_starts(federation: Federation) -> None:
    with pytest.raises(SettingsError, match="no attack 'bitflop'"):
        federation.daemon(0, "x", drill=DrillSettings(attack="bitflop"))
    with pytest.raises(SettingsError, match="cannot play 'foe'"):
        federation.daemon(0, "x", drill=DrillSettings(attack="foe", options={"epsilun": 1}))


@pytest.mark.parametrize("report", ["none", "counts", "all"])
def test_only_the_figures_that_the_operator_allows_leave_the_silo(federation: Federation, report: str) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1)
        daemons = [federation.daemon(n, run, report=report) for n in range(4)]
        seen: list[set[str]] = []
        sent = daemons[0].connection.report

        async def spy(request: Any) -> None:
            seen.append({field.name for field, _ in request.ListFields()})
            await sent(request)

        daemons[0].connection.report = spy  # type: ignore[method-assign]
        assert await finish(*daemons) == [None] * 4
        counts = {"run", "round", "model_version", "clip_rate", "epsilon_total", "given_up", "samples", "record_none"}
        figures = {"train_loss", "loss", "accuracy", "train_seconds"}
        allowed = {"none": set(), "counts": counts, "all": counts | figures}[report]
        union = set().union(*seen)
        assert union <= allowed
        assert figures <= union if report == "all" else not union & figures

    serve(federation, scenario, f"report-{report}")


def test_a_silo_says_that_another_run_over_its_data_had_no_guarantee(federation: Federation, tmp_path: Path) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1)
        LedgerFolder(tmp_path, federation.names[0]).write("before", Ledger().charge(CoordinateRelease(1, 100, 4, 0.0)))
        daemons = [federation.daemon(0, run, ledger=tmp_path), *(federation.daemon(n, run) for n in range(1, 4))]
        seen: list[Any] = []
        sent = daemons[0].connection.report

        async def spy(request: Any) -> None:
            seen.append(request)
            await sent(request)

        daemons[0].connection.report = spy  # type: ignore[method-assign]
        assert await finish_in_step(*daemons) == [None] * 4
        assert [(request.epsilon_none, request.HasField("epsilon_total")) for request in seen] == [(True, False)]
        assert federation.running is not None
        store = federation.running.coordinator.store
        assert [row.epsilon is None for row in store.silo_rows(run)] == [True, False, False, False]
        assert store.summary(run).epsilon_total is None

    serve(federation, scenario, "no-guarantee-elsewhere")


class OnTheWayOut:
    """Sees every message of the silos' daemons when it is about to be sent, and looks for its entry in their audits."""

    def __init__(self, audits: list[Audit]) -> None:
        self._audits = audits
        self.left: Counter[str] = Counter()
        self.unrecorded: list[str] = []

    def look(self, kind: str, message: object) -> None:
        if kind.startswith("Get") or kind == "Attend" or getattr(message, "session_key", None) == b"":
            return  # a question
        self.left[kind] += 1
        if sum(entry["what"] == kind for entry in self.entries()) < self.left[kind]:
            self.unrecorded.append(kind)

    def entries(self) -> list[dict[str, Any]]:
        return [entry for audit in self._audits for entry in audit.entries()]

    def line(self) -> type[Line]:
        look = self.look

        class Watched(Line):
            async def _write(self, call: Any, *messages: Any) -> None:
                if messages[0].method:
                    look(messages[0].method, call.request)
                await super()._write(call, *messages)

        return Watched


def test_the_audit_holds_an_entry_before_the_bytes_leave(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = OnTheWayOut([Audit(federation.settings(n, "audit").state / "audit.jsonl") for n in range(4)])
    monkeypatch.setattr("fedrep_silo.connection.Line", watched.line())
    monkeypatch.setattr("fedrep_silo.audit.time", SimpleNamespace(time=lambda: 1_900_000_000.1234))

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1)
        daemons = [federation.daemon(n, run) for n in range(4)]
        assert await finish(*daemons) == [None] * 4
        await daemons[0].leave()

    serve(federation, scenario, "audit")
    assert watched.unrecorded == []
    kinds = {"Join", "ProposeCoordinates", "SubmitMaskedShare", "ConfirmSurvivors", "RevealShares", "ReportMetrics", "Leave"}
    assert set(watched.left) == kinds
    entries = watched.entries()
    assert Counter(entry["what"] for entry in entries) == watched.left
    proposals = [entry for entry in entries if entry["what"] == "ProposeCoordinates"]
    assert [entry["epsilon_total"] for entry in proposals] == [pytest.approx(5.21, abs=0.01)] * 4
    assert [len(entry["mates"]) for entry in entries if entry["what"] == "SubmitMaskedShare"] == [1] * 4
    assert all(entry["bytes"] > 0 and entry["at"] == 1_900_000_000.123 for entry in entries)
