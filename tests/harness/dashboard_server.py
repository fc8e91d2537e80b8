"""A scripted federation server for the dashboard's tests: the real Observer contract over a real port.

It holds runs in memory, plays rounds on demand, and can die and come back on the same port.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from safetensors.numpy import save

from fedrep import privacy
from fedrep.errors import InvalidInputError
from fedrep.protocol.model_state import model_hash
from fedrep.protocol.preflight import preflight
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as fed
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep.wire.v1 import observer_pb2_grpc
from fedrep_server.calls.tags import checked_tags

PARAMETERS = 9610
COORDINATES = 480
START = time.time() - 1800.0
VECTOR = np.linspace(-1, 1, PARAMETERS, dtype=np.float32)
LAYOUT = [["out.weight", [PARAMETERS - 10]], ["bias", [10]]]  # not in alphabetical order, as safetensors would keep them
MODEL = save({"out.weight": VECTOR[:-10], "bias": VECTOR[-10:]}, {"fedrep.order": json.dumps([name for name, _ in LAYOUT])})
ATTACKERS = ("silo-03", "silo-08")


@dataclass
class ScriptedRun:
    summary: pb.RunSummary
    answer: pb.GetRunResponse
    rounds: list[pb.Round] = field(default_factory=list)
    log: list[pb.WatchRunResponse] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(7))
    private: int = 0


def scripted_run(
    name: str,
    silos: int = 10,
    rounds: int = 40,
    alpha: float = 0.5,
    budget: float | None = 900.0,
    aggregator: str = "geometric_median",
    state: str = "running",
    private: int = 0,
) -> ScriptedRun:
    """Of the silos the first `private` train by DP-SGD, the next says "none", and the others say nothing about their records."""
    names = [f"silo-{i:02}" for i in range(1, silos + 1)]
    manifest = fed.RunManifest(
        name=name, silos=names, parameters=PARAMETERS, coordinates=COORDINATES, alpha=alpha, buffer_size=2,
        reshuffle_every=1, ring_bits=16, value_bits=14, downlink_bits=16, initial_range=0.5, smallest_range=1e-4,
        largest_range=64.0, quorum=8, min_survivors=2, colluders=0, byzantine=2, aggregator=aggregator,
        aggregator_settings="{}", rounds=max(rounds, 60), drills=True,
        deadlines=fed.Deadlines(propose=30, submit=15, confirm=10, reveal=10),
    )  # fmt: skip
    if private:
        manifest.record_epsilon_at_most, manifest.delta_at_most = 8.0, 1e-5
    summary = pb.RunSummary(
        name=name, run=name.encode().ljust(32, b"\0"), state=state, created_at=START, rounds_planned=manifest.rounds,
        silos_present=silos, silos_allowed=silos, aggregator=aggregator, drills=True,
    )  # fmt: skip
    if budget is not None:
        summary.epsilon_budget = budget
    answer = pb.GetRunResponse(
        summary=summary,
        manifest=fed.SignedRunManifest(manifest=manifest, admin="alice"),
        dense_bytes_per_silo_round=8 * PARAMETERS,
        options=pb.RunOptions(evaluation_interval=1, keep_models=5, layout=json.dumps(LAYOUT)),
        models=[pb.ModelVersion(version=0, model_hash=model_hash(VECTOR), size=4 * PARAMETERS)],
    )
    for silo in names:
        status = answer.silos.add(name=silo, state="present", last_seen=START, software_version="0.1.0")
        status.certificate_expires = START + 90 * 86400
    return ScriptedRun(summary, answer, private=private)


class ScriptedServer(observer_pb2_grpc.ObserverServiceServicer):
    def __init__(self) -> None:
        self.runs: dict[str, ScriptedRun] = {}
        self.calls: list[tuple[str, str]] = []
        self.refusal = ""
        self.created: list[tuple[pb.CreateRunHeader, bytes]] = []
        self._changed = threading.Condition()
        self._server: Any = None
        self._alive = False
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> ScriptedServer:
        self._server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        observer_pb2_grpc.add_ObserverServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._alive = True
        self._server.start()
        return self

    def die(self) -> None:
        self._alive = False
        with self._changed:
            self._changed.notify_all()
        self._server.stop(0).wait()

    def add(self, run: ScriptedRun, rounds: int = 0) -> ScriptedRun:
        others = {name: known for name, known in self.runs.items() if name != run.summary.name}
        self.runs = {run.summary.name: run, **others}
        for silo in run.answer.silos:
            self.say(run, "joined", f"{silo.name} joined.", silo=silo.name)
        for _ in range(rounds):
            self.play_round(run)
        return run

    def say(self, run: ScriptedRun, kind: str, text: str, severity: str = "info", silo: str = "", item: Any = None) -> None:
        with self._changed:
            number = item.round if item is not None else 0
            event = pb.Event(
                position=len(run.log) + 1, at=START + len(run.rounds) * 2.5, kind=kind, severity=severity,
                round=number, silo=silo, text=text,
            )  # fmt: skip
            summary = pb.RunSummary()
            summary.CopyFrom(run.summary)
            run.log.append(pb.WatchRunResponse(event=event, round=item, summary=summary))
            run.answer.last_event = event.position
            run.answer.summary.CopyFrom(run.summary)
            self._changed.notify_all()

    def play_round(self, run: ScriptedRun) -> pb.Round:
        item = finished_round(run)
        run.rounds.append(item)
        summary = run.summary
        summary.round = item.round
        summary.bytes_up += item.bytes_up
        summary.bytes_down += item.bytes_down
        if item.HasField("epsilon"):
            summary.epsilon_total += item.epsilon
        applied = item.outcome == fed.OUTCOME_APPLIED
        summary.rounds_applied += applied
        summary.rounds_skipped += not applied
        summary.model_version = item.model_version
        if item.HasField("accuracy"):
            summary.accuracy, summary.loss = item.accuracy, item.loss
            summary.metrics.update(item.metrics)
            summary.best_accuracy = max(summary.best_accuracy, item.accuracy)
        run.answer.phase, run.answer.open_round = "propose", item.round + 1
        self._note_silos(run, item)
        if applied:
            self.say(run, "round_applied", f"Round {item.round} applied with {item.survivors} silos.", item=item)
        else:
            self.say(run, "round_skipped", f"Round {item.round} skipped: {item.reason}.", "warning", item=item)
        return item

    def _note_silos(self, run: ScriptedRun, item: pb.Round) -> None:
        for there, status in zip(item.silos, run.answer.silos, strict=True):
            status.bytes_up += there.bytes_up
            status.bytes_down += there.bytes_down
            status.last_seen = item.started_at + 2
            if item.HasField("epsilon"):
                status.epsilon_total += item.epsilon
            if there.HasField("record_epsilon"):
                status.record_epsilon, status.record_delta, status.record_budget = there.record_epsilon, 1e-5, 8.0
                totals = run.summary.records
                totals.epsilon, totals.delta = max(totals.epsilon, there.record_epsilon), 1e-5
                totals.reporting, totals.without = run.private, 1
            status.record_none = there.record_none
            if there.status == "dropped":
                status.strikes += 1
                self.say(run, "dropped", f"{there.silo} stopped answering in round {item.round}.", "warning", there.silo)
        for buffer in item.buffers:
            if buffer.discarded:
                text = f"Buffer {buffer.number} of round {item.round} discarded: {buffer.discarded}."
                self.say(run, "discarded", text, "alert")

    def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:  # noqa: N802, ARG002
        if self.refusal:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, self.refusal)
        return pb.ListRunsResponse(runs=[run.summary for run in self.runs.values()])

    def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:  # noqa: N802
        return self._find(request.name, context).answer

    def ListRounds(self, request: pb.ListRoundsRequest, context: Any) -> pb.ListRoundsResponse:  # noqa: N802
        run = self._find(request.name, context)
        start = max(request.from_round, 1) - 1
        page = run.rounds[start : start + min(request.limit or 500, 500)]
        end = start + len(page)
        return pb.ListRoundsResponse(rounds=page, next_round=end + 1 if end < len(run.rounds) else 0)

    def WatchRun(self, request: pb.WatchRunRequest, context: Any) -> Iterator[pb.WatchRunResponse]:  # noqa: N802
        run, position = self._find(request.name, context), request.after
        context.add_callback(self._wake)
        while context.is_active() and self._alive:
            with self._changed:
                while len(run.log) <= position and context.is_active() and self._alive:
                    self._changed.wait(60)
                fresh = run.log[position:]
            position += len(fresh)
            for response in fresh:
                if response.HasField("round"):  # as it now stands, not as it was
                    response.round.CopyFrom(run.rounds[response.round.round - 1])
                yield response

    def PauseRun(self, request: pb.PauseRunRequest, context: Any) -> pb.PauseRunResponse:  # noqa: N802
        return pb.PauseRunResponse(summary=self._set_state(request.name, "paused", request.reason, context))

    def ResumeRun(self, request: pb.ResumeRunRequest, context: Any) -> pb.ResumeRunResponse:  # noqa: N802
        return pb.ResumeRunResponse(summary=self._set_state(request.name, "running", "", context))

    def StopRun(self, request: pb.StopRunRequest, context: Any) -> pb.StopRunResponse:  # noqa: N802
        return pb.StopRunResponse(summary=self._set_state(request.name, "stopped", request.reason, context))

    def TagRun(self, request: pb.TagRunRequest, context: Any) -> pb.TagRunResponse:  # noqa: N802
        run = self._find(request.name, context)
        try:
            tags = checked_tags(request.tags)
        except InvalidInputError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        del run.summary.tags[:]
        run.summary.tags.extend(tags)
        self.say(run, "tags", f"tags by admin: {', '.join(tags) or 'none'}")
        return pb.TagRunResponse(summary=run.summary)

    def ExcludeSilo(self, request: pb.ExcludeSiloRequest, context: Any) -> pb.ExcludeSiloResponse:  # noqa: N802
        return pb.ExcludeSiloResponse(silo=self._set_silo(request.name, request.silo, "excluded", context))

    def ReadmitSilo(self, request: pb.ReadmitSiloRequest, context: Any) -> pb.ReadmitSiloResponse:  # noqa: N802
        return pb.ReadmitSiloResponse(silo=self._set_silo(request.name, request.silo, "present", context))

    def DownloadModel(self, request: pb.DownloadModelRequest, context: Any) -> Iterator[pb.DownloadModelResponse]:  # noqa: N802
        run = self._find(request.name, context)
        if request.version not in [model.version for model in run.answer.models]:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Model version {request.version} is not kept.")
        header = pb.DownloadHeader(version=request.version, size=len(MODEL), sha256=hashlib.sha256(MODEL).digest())
        yield pb.DownloadModelResponse(header=header)
        yield pb.DownloadModelResponse(chunk=MODEL)

    def CreateRun(self, requests: Iterator[pb.CreateRunRequest], context: Any) -> pb.CreateRunResponse:  # noqa: N802, ARG002
        header = next(requests).header
        received = b"".join(part.chunk for part in requests)
        problems = preflight(codec.run_manifest_from_wire(header.manifest.manifest))
        if not header.dry_run and not problems:
            self.created.append((header, received))
            self.add(scripted_run(header.manifest.manifest.name, state="waiting"))
        return pb.CreateRunResponse(run=b"r" * 32, problems=problems)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _find(self, name: str, context: Any) -> ScriptedRun:
        if name not in self.runs:
            context.abort(grpc.StatusCode.NOT_FOUND, f"There is no run {name!r} on this server.")
        return self.runs[name]

    def _set_state(self, name: str, state: str, reason: str, context: Any) -> pb.RunSummary:
        run = self._find(name, context)
        self.calls.append((state, name))
        if run.summary.state == "stopped":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"Run {name} was stopped for good; create a new one.")
        run.summary.state, run.summary.state_reason = state, reason
        self.say(run, "state", f"The run is now {state}. {reason}".strip())
        return run.summary

    def _set_silo(self, name: str, silo: str, state: str, context: Any) -> pb.SiloStatus:
        run = self._find(name, context)
        self.calls.append((state, silo))
        for status in run.answer.silos:
            if status.name == silo:
                status.state = state
                self.say(run, state, f"{silo} is now {state}.", "warning", silo)
                return status
        context.abort(grpc.StatusCode.NOT_FOUND, f"Run {name} allows no silo {silo!r}.")
        raise AssertionError


def finished_round(run: ScriptedRun) -> pb.Round:
    """A plausible round: accuracy saturates, the attackers' buffers lie far out, some silos are late or drop out."""
    manifest, rng, number = run.answer.manifest.manifest, run.random, len(run.rounds) + 1
    names = list(manifest.silos)
    skipped = number % 23 == 0
    statuses = dict.fromkeys(names, "on_time")
    if number % 5 == 0:
        statuses[rng.choice(names)] = "late"
    if number % 7 == 0:
        statuses[rng.choice(names)] = "dropped"
    if skipped:
        statuses.update(dict.fromkeys(rng.sample(names, 3), "dropped"))
    proposed = sum(status != "dropped" for status in statuses.values())
    k = COORDINATES // len(names)
    item = pb.Round(
        round=number,
        outcome=fed.OUTCOME_SKIPPED if skipped else fed.OUTCOME_APPLIED,
        reason="only 7 of 8 silos proposed" if skipped else "",
        started_at=START + number * 2.5,
        phase_seconds=[0.9 + 0.4 * rng.random(), 0.3 + 0.2 * rng.random(), 0.1, 0.08 + 0.05 * rng.random(), 0.05],
        consensus_size=COORDINATES - rng.randrange(20),
        roster_size=len(names),
        proposed=proposed,
        survivors=0 if skipped else proposed,
        clip_range=0.5,
        clip_rate=0.0004,
        model_version=run.summary.model_version + (not skipped),
        per_silo=k,
        tolerated=2,
    )
    exact, bound = privacy.coordinate_epsilon(PARAMETERS, k, manifest.alpha), None
    if exact is not None:
        item.epsilon = exact
        bound = privacy.theorem2_epsilon(PARAMETERS, k, manifest.alpha)
        item.epsilon_theorem2 = bound or 0.0
    for name, status in statuses.items():
        up = 0 if status == "dropped" else 3300 + rng.randrange(300)
        item.silos.add(silo=name, status=status, bytes_up=up, bytes_down=2900 + rng.randrange(200))
    for index, there in enumerate(item.silos[: run.private + 1] if run.private else ()):
        if index < run.private:
            there.record_epsilon = (0.5 + 0.05 * index) * math.sqrt(number)
        else:
            there.record_none = True
    item.bytes_up = sum(silo.bytes_up for silo in item.silos)
    item.bytes_down = sum(silo.bytes_down for silo in item.silos)
    if not skipped:
        _score(item, number, rng)
        _fill_buffers(item, [n for n in names if statuses[n] != "dropped"], number, rng)
    return item


def _score(item: pb.Round, number: int, rng: random.Random) -> None:
    item.accuracy = 0.965 - 0.86 * math.exp(-number / 9) + rng.uniform(-0.008, 0.008)
    item.loss = 0.12 + 2.2 * math.exp(-number / 8) + rng.uniform(-0.01, 0.01)
    item.silo_accuracy.extend([item.accuracy - 0.06, item.accuracy - 0.01, min(1.0, item.accuracy + 0.03)])
    item.silo_loss.extend([item.loss * 0.8, item.loss * 1.05, item.loss * 1.4])
    item.metrics["auroc"] = 1 - 0.5 * math.exp(-number / 9)
    item.update_norm = 1.4 * math.exp(-number / 14) + 0.1


def _fill_buffers(item: pb.Round, there: list[str], number: int, rng: random.Random) -> None:
    rng.shuffle(there)
    count = len(there) // 2
    members = [there[i::count] for i in range(count)]
    for index, group in enumerate(members):
        attacked = any(name in ATTACKERS for name in group)
        distance = item.update_norm * (rng.uniform(3, 6) if attacked else rng.uniform(0.5, 0.9))
        buffer = item.buffers.add(number=index, members=sorted(group), survivors=len(group), opened=True)
        buffer.distance, buffer.weight = distance, 0.04 if attacked else 0.28
        if number % 11 == 0 and index == 1:
            buffer.opened, buffer.discarded = False, "too few matching shares"
            buffer.ClearField("distance")
