"""`fedrep client check`: everything that can be found out before the first round, one line each, and what to do."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable

from fedrep.errors import FedrepError, SaidByPeer, SettingsError
from fedrep.privacy import coordinate_epsilon, shown, sum_of
from fedrep.protocol.amendments import first_of
from fedrep.protocol.manifests import RunManifest, SignedRunManifest
from fedrep.protocol.silo_effects import Join, Joined
from fedrep.protocol.silo_rules import check_run
from fedrep.protocol.silo_trust import check_run_signature
from fedrep.record_privacy import SampledGaussian, Stated, TrainingPrivacy
from fedrep_cli.client import check_role, make_trainer
from fedrep_identity.certificates import Credentials
from fedrep_identity.diagnosis import Outcome, diagnose
from fedrep_silo.config import SiloSettings
from fedrep_silo.connection import connect
from fedrep_silo.drill import Drill
from fedrep_silo.ledgers import LedgerFolder
from fedrep_silo.record_books import RecordBooks
from fedrep_silo.run_folders import wanted
from fedrep_silo.state import StateFolder
from fedrep_silo.trust import FederationTrust
from fedrep_trainers.contract import check_trainer
from fedrep_trainers.layout import ModelLayout
from fedrep_trainers.trainer import PrivateTrainer, Trainer
from fedrep_trainers.user_errors import explained, show_traceback

Row = dict[str, str]
SERVER_SECONDS = 10.0


def row(check: str, outcome: Outcome, text: str, advice: str = "") -> Row:
    return {"check": check, "outcome": outcome.value, "text": text, "advice": advice}


async def check_silo(settings: SiloSettings) -> list[Row]:
    rows = [row("settings", Outcome.OK, f"{settings.role} in run {wanted(settings)!r} at {settings.server}")]
    rows += await _credentials_and_connection(settings)
    trainer, made = _trainer(settings)
    rows += made
    rows.append(_state(settings, trainer))
    if trainer is not None:
        rows += _promises(trainer, {found["text"]: found["check"] for found in rows if found["outcome"] == Outcome.FAILED.value})
    rows += await (_runs if settings.follows else _run)(settings, trainer)
    return rows


async def _credentials_and_connection(settings: SiloSettings) -> list[Row]:
    findings = await diagnose(settings.credentials, settings.server)
    rows = [row(finding.check, finding.outcome, finding.text, finding.advice) for finding in findings]
    try:
        check_role(settings, Credentials.load(settings.credentials))
    except SettingsError as error:
        if error.reason != "NOT_ENROLLED":  # which the rows say already
            rows.append(row("role", Outcome.FAILED, str(error)))
    return rows


def _trainer(settings: SiloSettings) -> tuple[Trainer | None, list[Row]]:
    source = settings.trainer.source
    started = time.monotonic()
    try:
        trainer = make_trainer(settings)
    except FedrepError as error:
        return None, [row("data and model", Outcome.FAILED, str(error), "Correct [trainer] in the silo's settings.")]
    seconds = time.monotonic() - started
    rows = [row("data and model", Outcome.OK, f"{source}: {trainer.layout.size} parameters, ready in {seconds:.1f} s")]
    if "torch" in sys.modules:
        from fedrep_trainers.devices import choose_device

        try:
            rows.append(row("device", Outcome.OK, str(choose_device(settings.trainer.device))))
        except FedrepError as error:
            rows.append(row("device", Outcome.FAILED, str(error), "Choose another `device` in [trainer]."))
    started = time.monotonic()
    before = trainer.state()
    try:
        if isinstance(trainer, PrivateTrainer):
            trainer.privacy(None)  # nothing of this training leaves, so nothing is charged
        result = trainer.train(trainer.initial(), 1)
        trainer.load_state(before)
    except Exception as error:  # user code may raise anything; it belongs in the table
        show_traceback(error)
        rows.append(row("one training", Outcome.FAILED, explained(error), "Correct the trainer or its data."))
    else:
        text = f"{time.monotonic() - started:.2f} s for one round's training, loss {result.loss:.4g}"
        rows.append(row("one training", Outcome.OK, text))
    return trainer, rows


def _promises(trainer: Trainer, shown: dict[str, str]) -> Iterable[Row]:
    """One red row per cause: an error in training keeps most promises from being checked. `shown` are causes with their rows."""
    for finding in check_trainer(trainer):
        if finding.cause in shown:
            yield row(f"trainer: {finding.check}", Outcome.SKIPPED, f"not checked, for the reason at {shown[finding.cause]!r}")
            continue
        if finding.cause:
            shown[finding.cause] = f"trainer: {finding.check}"
        outcome = Outcome.OK if finding.passed else Outcome.FAILED
        advice = "" if finding.passed else "See docs/trainer.md for what a trainer promises."
        yield row(f"trainer: {finding.check}", outcome, finding.detail, advice)


def _state(settings: SiloSettings, trainer: Trainer | None) -> Row:
    try:
        folder = StateFolder(settings.state, private=settings.privacy is not None)
        folder.check_journal()
        journal = folder.journal()
        if trainer is not None:
            folder.memory(trainer.layout.size)
        if folder.has_trained:
            RecordBooks(settings.ledger, settings.privacy).require_trainings()
        probe = settings.state / ".check"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        return row("state folder", Outcome.FAILED, f"{settings.state} cannot be written: {error.strerror}", "Correct `state`.")
    except FedrepError as error:
        return row("state folder", Outcome.FAILED, str(error))
    last = f"last spoke in round {journal.last_round}" if journal.last_round else "new"
    return row("state folder", Outcome.OK, f"{settings.state}, {last}")


async def _runs(settings: SiloSettings, trainer: Trainer | None) -> list[Row]:
    """For a silo that goes from run to run: those that the server offers, and whether the trainer fits."""
    connection = connect(settings.model_copy(update={"give_up_after": SERVER_SECONDS / 2}))
    try:
        async with asyncio.timeout(SERVER_SECONDS):
            offered = await connection.find_runs()
    except (FedrepError, TimeoutError) as error:
        return [_not_answered("runs", error)]
    finally:
        await connection.close()
    named = [run for run in offered if not settings.runs or run.name in settings.runs]
    if not named:
        return [row("runs", Outcome.OK, "no run lists this silo yet; the daemon waits for one")]
    mine = None if trainer is None else bytes.fromhex(trainer.layout.digest)
    text = ", ".join(f"{run.name} ({run.state}{'' if mine in (None, run.layout_hash) else ', another model'})" for run in named)
    return [row("runs", Outcome.OK, text)]


def _not_answered(check: str, error: FedrepError | TimeoutError) -> Row:
    """What the server refuses says itself what is wrong; where it did not answer, the lines about the line to it say more."""
    advice = "Start with the lines above."
    if isinstance(error, FedrepError) and error.reason == "UNKNOWN_RUN":
        advice = 'Ask an admin to create it, name one of these, or set run = "*" to wait for any run that lists this silo.'
    elif isinstance(error, SaidByPeer):
        advice = ""
    return row(check, Outcome.FAILED, str(error) or "the server did not answer in time", advice)


async def _run(settings: SiloSettings, trainer: Trainer | None) -> list[Row]:
    """The run as the server shows it, against this silo's policy and model; nothing is promised by asking."""
    connection = connect(settings.model_copy(update={"give_up_after": SERVER_SECONDS / 2}))
    try:
        credentials = Credentials.load(settings.credentials)
        async with asyncio.timeout(SERVER_SECONDS):
            joined = await connection.join(Join(settings.run, None))
            offered = await connection.find_runs(settings.run)
    except (FedrepError, TimeoutError) as error:
        return [_not_answered("run", error)]
    finally:
        await connection.close()
    try:
        pinned = settings.policy.rules(None).pinned_admins if settings.role == "silo" else None
        trust = FederationTrust(credentials.trust_store())
        run = check_run_signature(joined.run, trust, pinned, known=_takes_part(settings, joined.run))
    except FedrepError as error:
        return [row("run", Outcome.FAILED, str(error), "Compare `admins_file` in [policy] with the federation's admins.")]
    rows = [row("run", Outcome.OK, f"{run.name!r}: {joined.state}, round {joined.last_round} of {run.rounds}")]
    if trainer is not None:
        rows.append(_model(run, trainer, next((entry.layout for entry in offered), "")))
        if settings.role == "silo":
            rows.append(_policy(settings, run, credentials.identity.name))
            rows.append(_epsilon(settings, joined, credentials.identity.name))
            rows.append(_records(settings, run, trainer, joined.last_round))
    return rows


def _model(run: RunManifest, trainer: Trainer, layout: str) -> Row:
    """`layout` is what the run's creator said of its parameters; the hash in the signed manifest is what counts."""
    if run.layout_hash == bytes.fromhex(trainer.layout.digest):
        return row("model of the run", Outcome.OK, f"all {run.parameters} parameters agree in name and shape")
    text = f"the run has {run.parameters} parameters, this trainer {trainer.layout.size}; names or shapes differ"
    if trainer.layout.frozen and run.parameters == trainer.layout.size:
        text = f"{text}, or the frozen weights, whose hash is {trainer.layout.frozen[:16]} here"
    if layout:
        theirs = ModelLayout.of(((name, shape) for name, shape in json.loads(layout)), trainer.layout.frozen)
        text = trainer.layout.difference(theirs) or text
    return row("model of the run", Outcome.FAILED, text, "Use the model, and the base, that the run was created with.")


def _policy(settings: SiloSettings, run: RunManifest, name: str) -> Row:
    try:
        check_run(run, settings.policy.rules(None), name, RecordBooks(settings.ledger, settings.privacy).promise)
        Drill.of(settings.drill).check(run)
    except FedrepError as error:
        return row(
            "policy", Outcome.FAILED, str(error), "Change [policy], [privacy] or [drill], or talk to the admins of the run."
        )
    return row("policy", Outcome.OK, "the run is within this silo's policy")


def _epsilon(settings: SiloSettings, joined: Joined, name: str) -> Row:
    """For the full roster: fewer silos propose more coordinates each."""
    run = joined.run.manifest
    cost = coordinate_epsilon(run.parameters, run.coordinates // len(run.silos), run.alpha)
    covers = "which coordinates are proposed, one coordinate changed"
    try:
        spent = _spent(settings, joined, name)
    except FedrepError as error:
        return row("epsilon", Outcome.FAILED, str(error))
    budget = settings.policy.epsilon_budget
    if cost is None:
        text = f"alpha = 0: no guarantee ({covers})"
        return row("epsilon", Outcome.WARNING, text, "Ask for alpha > 0 with least_alpha in [policy] if you want one.")
    if budget is None:
        return row("epsilon", Outcome.OK, f"{shown(cost)} per round, {shown(spent)} spent, no budget set ({covers})")
    if spent is None:
        text = f"a proposal from this data set went out without any guarantee: the budget of {budget:g} is spent ({covers})"
        return row("epsilon", Outcome.WARNING, text, "The silo takes part only without `epsilon_budget` in [policy].")
    left = max(budget - spent, 0.0)
    rounds = int(left // cost) if cost else run.rounds
    outcome = Outcome.OK if rounds >= run.rounds - joined.last_round else Outcome.WARNING
    text = f"{shown(cost)} per round, {shown(spent)} spent; the budget lasts for {rounds} more rounds of {run.rounds} ({covers})"
    return row("epsilon", outcome, text, "" if outcome is Outcome.OK else "The silo stops when the budget is spent.")


def _records(settings: SiloSettings, run: RunManifest, trainer: Trainer, last_round: int) -> Row:
    """What the run would cost one training record; nothing is charged by asking."""
    books = RecordBooks(settings.ledger, settings.privacy)
    left = max(run.rounds - last_round, 1)
    try:
        books.check(trainer)
        ledger = books.ledger()
        privacy = books.statement(ledger, run.digest().hex(), trainer, left)
        spent = shown(books.standing().epsilon)
    except FedrepError as error:
        return row("records", Outcome.FAILED, str(error), "Correct [privacy] or `ledger`.")
    if privacy is None:
        text = "the trainer states nothing: no guarantee for a training record"
        return row("records", Outcome.WARNING, text, "Set [privacy] if you want one (docs/silo.md).")
    budget = books.budget
    if budget is None:
        return row("records", Outcome.OK, f"{_stated(privacy)}; spent so far {spent}, no budget set")
    from fedrep_trainers.record_accountant import fitting

    count = fitting(ledger, run.digest().hex(), privacy, budget)
    outcome = Outcome.OK if count >= left else Outcome.WARNING
    text = f"{_stated(privacy)}; spent {spent} of {budget.epsilon:g}, which lasts for {count} more trainings of {left}"
    return row("records", outcome, text, "" if outcome is Outcome.OK else "The silo stops when the budget is spent.")


def _stated(privacy: TrainingPrivacy) -> str:
    match privacy:
        case SampledGaussian(noise, rate, steps):
            return f"DP-SGD, {steps} steps a training at rate {rate:.3g} with noise {noise:g} C"
        case Stated(epsilon, delta):
            return f"the trainer states epsilon = {epsilon:g} at delta = {delta:g} a training"


def _takes_part(settings: SiloSettings, signed: SignedRunManifest) -> bool:
    """Whether this silo has agreed to these very rules before."""
    if settings.role != "silo":
        return True
    ledgers = LedgerFolder(settings.ledger, Credentials.load(settings.credentials).identity.name)
    return StateFolder(settings.state, ledgers).charged_journal().run == signed.manifest.digest().hex()


def _spent(settings: SiloSettings, joined: Joined, name: str) -> float | None:
    """By all runs over this data set, as the daemon would count it."""
    ledgers = LedgerFolder(settings.ledger, name)
    journal = StateFolder(settings.state, ledgers).charged_journal()
    origin = first_of((*(signed.manifest for signed in joined.predecessors), joined.run.manifest))
    run = journal.ledger_name or origin.digest().hex()
    ledger = journal.ledger if journal.run else ledgers.of(run)
    return sum_of(ledger.total, ledgers.elsewhere(run))
