"""ObserverService: what admins and viewers see of the runs, and what admins may do to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fedrep.errors import InvalidInputError, NotFoundError
from fedrep.protocol.best import Best
from fedrep.protocol.manifests import SiloName
from fedrep.wire import codec
from fedrep.wire.chunks import Assembler, cut_into_chunks
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep.wire.v1 import observer_pb2_grpc
from fedrep_identity.certificates import Role
from fedrep_server.calls import views
from fedrep_server.calls.export import check_layout, model_file
from fedrep_server.calls.interceptor import caller, concerns_run, only_one_of_its_kind
from fedrep_server.calls.model_shelf import ModelShelf
from fedrep_server.calls.permissions import FOLLOWERS
from fedrep_server.calls.servicer import collect_in_place, header_of, may_know
from fedrep_server.calls.tags import checked_tags
from fedrep_server.rounds.coordinator import Coordinator
from fedrep_server.rounds.model_store import StoredModel
from fedrep_server.rounds.records import FLOAT_BYTES
from fedrep_server.rounds.run_driver import RunDriver

Context = Any
PAGE = 500
EVENT_PAGE = 500
HEARTBEAT_SECONDS = 15.0
LARGEST_MODEL_BYTES = 16 * 2**30


def _as_file(model: StoredModel, driver: RunDriver, last_round: int | None) -> memoryview:
    return memoryview(model_file(model, driver.records.options.layout, driver.manifest, last_round))


class ObserverServicer(observer_pb2_grpc.ObserverServiceServicer):
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._store = coordinator.store
        self._files = ModelShelf(coordinator, _as_file)

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        newest_first = reversed(self._coordinator.drivers)
        return pb.ListRunsResponse(runs=[await self._summary(driver) for driver in newest_first])

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        driver = self._run(request.name)
        name = driver.manifest.name
        silos = await asyncio.to_thread(self._store.silo_rows, name)
        models = await asyncio.to_thread(self._store.models, name)
        figures = await asyncio.to_thread(self._store.summary, name)
        response = pb.GetRunResponse(
            summary=await self._summary(driver),
            manifest=codec.signed_run_to_wire(driver.signed),
            silos=views.silo_statuses(driver, silos),
            models=[views.model_version(row) for row in models],
            last_event=figures.last_event,
            dense_bytes_per_silo_round=2 * FLOAT_BYTES * driver.manifest.parameters,
            options=driver.records.options,
        )
        if driver.amendment is not None:
            response.amendment.CopyFrom(codec.signed_run_to_wire(driver.amendment))
        if driver.open is not None:
            response.phase = driver.open.machine.phase.value
            response.open_round = driver.open.signed.manifest.round
        return response

    async def ListRounds(self, request: pb.ListRoundsRequest, context: Context) -> pb.ListRoundsResponse:
        name = self._run(request.name).manifest.name
        if request.downsample:
            rows = await asyncio.to_thread(self._store.thinned_rounds, name, request.downsample)
            return pb.ListRoundsResponse(rounds=[views.round_message(row) for row in rows])
        limit = min(request.limit or PAGE, PAGE)
        rows = await asyncio.to_thread(self._store.rounds, name, request.from_round, limit + 1)
        following = rows[limit].row.round if len(rows) > limit else 0
        return pb.ListRoundsResponse(rounds=[views.round_message(row) for row in rows[:limit]], next_round=following)

    async def WatchRun(self, request: pb.WatchRunRequest, context: Context) -> AsyncIterator[pb.WatchRunResponse]:
        """Everything after a position, then live. The store is read after every wake-up, so nothing is lost or repeated."""
        driver = self._run(request.name)
        name, position = driver.manifest.name, request.after
        while True:
            news = asyncio.ensure_future(self._coordinator.watchers.wait(name, HEARTBEAT_SECONDS))
            try:
                events = await asyncio.to_thread(self._store.events, name, position, EVENT_PAGE)
                summary = await self._summary(driver) if events else None
                for stored in events:
                    position = stored.position
                    response = pb.WatchRunResponse(event=views.event_message(stored), summary=summary)
                    view = None
                    if stored.event.kind in ("round_applied", "round_skipped", "metrics"):
                        view = await asyncio.to_thread(self._store.round_row, name, stored.event.round)
                    if view is not None:
                        response.round.CopyFrom(views.round_message(view))
                    yield response
                if len(events) < EVENT_PAGE:
                    await news
            finally:
                news.cancel()

    async def CreateRun(self, request_iterator: AsyncIterator[Any], context: Context) -> pb.CreateRunResponse:
        header = await header_of(request_iterator)
        signed = codec.signed_run_from_wire(header.manifest)
        check_layout(header.options.layout, signed.manifest.parameters)
        Best.named(header.options.best)
        problems = await asyncio.to_thread(self._coordinator.rehearse, signed, caller())
        if not problems and not header.dry_run:
            size = FLOAT_BYTES * signed.manifest.parameters
            assembler = Assembler(size, header.sha256, LARGEST_MODEL_BYTES, "the initial model")
            await self._coordinator.create_run(signed, header.options, await collect_in_place(request_iterator, assembler))
        return pb.CreateRunResponse(run=signed.manifest.digest(), problems=problems)

    async def StopRun(self, request: pb.StopRunRequest, context: Context) -> pb.StopRunResponse:
        driver = self._run(request.name)
        await driver.stop(request.reason or f"stopped by {caller().identity.name}")
        return pb.StopRunResponse(summary=await self._summary(driver))

    async def PauseRun(self, request: pb.PauseRunRequest, context: Context) -> pb.PauseRunResponse:
        driver = self._run(request.name)
        await driver.pause(request.reason or f"paused by {caller().identity.name}")
        return pb.PauseRunResponse(summary=await self._summary(driver))

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: Context) -> pb.ResumeRunResponse:
        driver = self._run(request.name)
        await driver.go_on()
        return pb.ResumeRunResponse(summary=await self._summary(driver))

    async def ExcludeSilo(self, request: pb.ExcludeSiloRequest, context: Context) -> pb.ExcludeSiloResponse:
        driver, silo = self._silo(request.name, request.silo)
        await driver.exclude(silo, caller().identity.name, request.reason)
        return pb.ExcludeSiloResponse(silo=await self._silo_status(driver, silo))

    async def ReadmitSilo(self, request: pb.ReadmitSiloRequest, context: Context) -> pb.ReadmitSiloResponse:
        driver, silo = self._silo(request.name, request.silo)
        await driver.readmit(silo, caller().identity.name)
        return pb.ReadmitSiloResponse(silo=await self._silo_status(driver, silo))

    async def RollBackRun(self, request: pb.RollBackRunRequest, context: Context) -> pb.RollBackRunResponse:
        driver = self._run(request.name)
        if not request.HasField("order"):
            raise InvalidInputError(
                "silos take an older model only with an admin's signature, and this request has none: use "
                "`fedrep run rollback`, which signs on your machine",
                reason="NOT_SIGNED",
            )
        await self._coordinator.roll_back(driver, request.version, codec.rollback_from_wire(request.order), caller())
        return pb.RollBackRunResponse(summary=await self._summary(driver))

    async def AmendRun(self, request: pb.AmendRunRequest, context: Context) -> pb.AmendRunResponse:
        driver = self._run(request.name)
        await self._coordinator.amend(driver, codec.signed_run_from_wire(request.manifest), caller())
        return pb.AmendRunResponse(summary=await self._summary(driver))

    async def TagRun(self, request: pb.TagRunRequest, context: Context) -> pb.TagRunResponse:
        driver = self._run(request.name)
        tags = checked_tags(request.tags)
        await asyncio.to_thread(self._store.set_tags, driver.manifest.name, tags)
        await driver.note("tags", f"tags by {caller().identity.name}: {', '.join(tags) or 'none'}")
        return pb.TagRunResponse(summary=await self._summary(driver))

    async def DeleteRun(self, request: pb.DeleteRunRequest, context: Context) -> pb.DeleteRunResponse:
        driver = self._run(request.name)
        await self._coordinator.delete_run(driver)
        kept = await asyncio.to_thread(self._store.spent)
        return pb.DeleteRunResponse(silos_kept=sum(row.run == request.name for row in kept))

    async def DownloadModel(self, request: pb.DownloadModelRequest, context: Context) -> AsyncIterator[pb.DownloadModelResponse]:
        driver = self._run(request.name)
        if caller().identity.role is Role.SILO:
            driver.machine.check_allowed(caller().identity.name)
        if caller().identity.role in FOLLOWERS:  # behind a viewer's certificate is a dashboard with many people
            only_one_of_its_kind(whichever_run=True)
        version = await self._wanted_version(driver, request)
        latest = driver.last_round if version == driver.model.state.version else None
        file = await self._files.model(driver, version, latest)
        yield pb.DownloadModelResponse(header=pb.DownloadHeader(version=version, size=len(file.data), sha256=file.sha256))
        for chunk in cut_into_chunks(file.data):
            yield pb.DownloadModelResponse(chunk=chunk)
        self._files.fetched(driver, version, latest)

    async def _wanted_version(self, driver: RunDriver, request: pb.DownloadModelRequest) -> int:
        if request.HasField("version"):
            return request.version
        if not request.best:
            return driver.model.state.version
        kept = await asyncio.to_thread(self._store.models, driver.manifest.name)
        best = next((row.version for row in kept if row.best), None)
        if best is None:
            raise NotFoundError(
                "no evaluator has reported the figure that decides yet, so no version is the best", reason="NO_BEST_MODEL"
            )
        return best

    def _run(self, name: str) -> RunDriver:
        driver = self._coordinator.run_named(name, may_know)
        concerns_run(name)
        return driver

    def _silo(self, run: str, name: str) -> tuple[RunDriver, SiloName]:
        driver = self._run(run)
        if name not in driver.manifest.silos:
            raise NotFoundError(f"run {run!r} has no silo named {name!r}", reason="UNKNOWN_SILO")
        return driver, SiloName(name)

    async def _silo_status(self, driver: RunDriver, silo: SiloName) -> pb.SiloStatus:
        rows = await asyncio.to_thread(self._store.silo_rows, driver.manifest.name)
        return next(status for status in views.silo_statuses(driver, rows) if status.name == silo)

    async def _summary(self, driver: RunDriver) -> pb.RunSummary:
        stored = await asyncio.to_thread(self._store.run, driver.manifest.name)
        figures = await asyncio.to_thread(self._store.summary, driver.manifest.name)
        return views.run_summary(driver, stored, figures)
