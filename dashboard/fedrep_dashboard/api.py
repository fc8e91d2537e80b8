"""The REST interface under /api/v1. Reading needs a signed-in viewer or admin; changing is in `fedrep_dashboard.actions`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from sse_starlette import EventSourceResponse, ServerSentEvent

from fedrep.errors import NotFoundError
from fedrep_dashboard import exports, live, schema, view
from fedrep_dashboard.auth import Gate, NotSignedInError, Principal
from fedrep_dashboard.connection import Connection
from fedrep_dashboard.feed import Feeds, RunFeed

LARGEST = 2**53 - 1  # of an integer in JavaScript
HEAT_COLUMNS = 240
Format = Literal["json", "csv"]
Chart = Literal[
    "accuracy", "loss", "metrics", "bytes", "epsilon", "health", "phases", "buffers", "silos", "records", "suspicion", "events"
]
Metric = Literal["accuracy", "loss", "bytes_total", "epsilon_sum", "update_norm"]
RunName = Annotated[str, Path(pattern=schema.NAME)]
Points = Annotated[int | None, Query(ge=10, le=5000, description="About how many rounds to return at most.")]
Columns = Annotated[int, Query(ge=10, le=1000)]
Last = Annotated[int | None, Query(ge=1, le=LARGEST, description="Only this many of the latest rounds.")]

PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": schema.Problem, "description": "The request or a setting cannot be used."},
    401: {"model": schema.Problem, "description": "Nobody is signed in."},
    403: {"model": schema.Problem, "description": "The signed-in role may not do this, or the CSRF token is missing."},
    404: {"model": schema.Problem, "description": "There is no such run, round or silo."},
    409: {"model": schema.Problem, "description": "The run is not in a state that allows this."},
    413: {"model": schema.Problem, "description": "The model file, or the request, is larger than this dashboard takes."},
    422: {"model": schema.Problem, "description": "A parameter is out of its range."},
    502: {"model": schema.Problem, "description": "The federation server answered with an error."},
    503: {"model": schema.Problem, "description": "The federation server cannot be reached."},
}


def principal(request: Request) -> Principal:
    gate: Gate = request.app.state.gate
    found = gate.identify(request)
    if found is None:
        raise NotSignedInError("Sign in first: open the dashboard's page, or send Authorization: Bearer TOKEN.")
    return found


Viewer = Annotated[Principal, Depends(principal)]


def all_feeds(request: Request) -> Feeds:
    feeds: Feeds = request.app.state.feeds
    return feeds


AllFeeds = Annotated[Feeds, Depends(all_feeds)]


async def run_feed(name: RunName, feeds: AllFeeds) -> RunFeed:
    return await feeds.get(name)


Feed = Annotated[RunFeed, Depends(run_feed)]

session_router = APIRouter(prefix="/api/v1", tags=["session"], responses=PROBLEMS)
router = APIRouter(prefix="/api/v1", tags=["runs"], dependencies=[Depends(principal)], responses=PROBLEMS)


@session_router.get("/session")
def get_session(request: Request) -> schema.Session:
    """Who is signed in; never an error."""
    gate: Gate = request.app.state.gate
    found = gate.identify(request)
    return describe(found, request.app.state.connection) if found else schema.Session(signed_in=False)


@session_router.post("/session")
def sign_in(request: Request, response: Response, body: schema.SignIn) -> schema.Session:
    """Exchange a token for a session cookie."""
    gate: Gate = request.app.state.gate
    return describe(gate.sign_in(response, body.token), request.app.state.connection)


@session_router.delete("/session", status_code=204)
def sign_out(request: Request, response: Response) -> None:
    """End the session: copies of its cookie count no longer."""
    gate: Gate = request.app.state.gate
    found = gate.identify(request)
    if found is not None:
        gate.require_own_page(request, found)
    gate.sign_out(request, response)


def describe(found: Principal, connection: Connection) -> schema.Session:
    may_act = found.role == "admin" and connection.may_act
    note = ""
    if found.role != "admin":
        note = "You are signed in as a viewer. Sign in with the admin token to steer runs."
    elif not connection.may_act:
        note = "This dashboard's own certificate has the role viewer, so it cannot steer runs. Give it one of role admin."
    own = connection.credentials if may_act else None
    return schema.Session(
        signed_in=True,
        user=found.user,
        role=found.role,
        csrf=found.csrf,
        may_act=may_act,
        may_create=own is not None,
        signer=schema.Signer(name=own.identity.name, fingerprint=own.fingerprint.hex()) if own is not None else None,
        note=note,
    )


@router.get("/status")
def get_status(request: Request, feeds: AllFeeds) -> schema.Status:
    """Whether the federation server answers."""
    return schema.Status(server=live.server_state(feeds.observer), version=request.app.version, now=time.time())


@router.get("/runs")
async def list_runs(feeds: AllFeeds) -> schema.Runs:
    """All runs, newest first."""
    return schema.Runs(runs=await feeds.runs())


@router.get("/runs/{name}")
async def get_run(feed: Feed) -> schema.RunDetail:
    """One run: state, settings, kept models, epsilon and when its budget ends."""
    answer = await feed.refresh()
    return view.detail_of(answer, feed.run(), feed.history.rows(), feed.position)


@router.get("/runs/{name}/rounds")
async def list_rounds(
    request: Request, feed: Feed, from_round: Annotated[int, Query(ge=0, le=LARGEST)] = 0, points: Points = None
) -> schema.Rounds:
    """Finished rounds in ascending order, with running totals; long runs are thinned so that extremes survive."""
    rows = feed.history.thinned(points or request.app.state.settings.chart_points, from_round)
    return schema.Rounds(rows=rows, total=len(feed.history), last_event=feed.position)


@router.get("/runs/{name}/rounds/{number}")
async def get_round(feed: Feed, number: Annotated[int, Path(ge=1, le=LARGEST)]) -> schema.RoundDetail:
    """One finished round with its buffers and who was there."""
    detail = feed.history.detail(number)
    if detail is None:
        raise NotFoundError(f"Run {feed.name} has no finished round {number}; the last one is {feed.history.last}.")
    return detail


@router.get("/runs/{name}/rounds/{number}/events")
async def list_round_events(feed: Feed, feeds: AllFeeds, number: Annotated[int, Path(ge=1, le=LARGEST)]) -> schema.Events:
    """What happened in one round, in ascending order, as far as the server still knows."""
    found = await round_events(feed, feeds, number)
    return schema.Events(events=found, last_event=feed.position)


@router.get("/runs/{name}/silos")
async def list_silos(feed: Feed) -> schema.Silos:
    """Every allowed silo as the server sees it; never anything about its values."""
    return schema.Silos(silos=[view.silo_of(silo) for silo in (await feed.refresh()).silos])


@router.get("/runs/{name}/suspicion")
async def get_suspicion(feed: Feed) -> schema.Suspicion:
    """Who sat in suspected buffers more often than their seats explain, with the probability that this is by chance."""
    return feed.history.suspicion(feed.over)


@router.get("/runs/{name}/attendance")
async def get_attendance(feed: Feed, columns: Columns = HEAT_COLUMNS, last: Last = None) -> schema.HeatMap:
    """Round by silo: on_time, abstained, late, dropped, sitting_out, excluded or absent."""
    return feed.history.attendance(columns, last)


@router.get("/runs/{name}/buffers")
async def get_buffers(feed: Feed, columns: Columns = HEAT_COLUMNS, last: Last = None) -> schema.HeatMap:
    """Round by buffer: used, suspected or discarded, and the distance of the buffer's mean from the update."""
    return feed.history.buffer_map(columns, last)


@router.get("/runs/{name}/events")
async def list_events(
    feed: Feed,
    feeds: AllFeeds,
    before: Annotated[int | None, Query(ge=1, le=LARGEST, description="Only events before this position.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> schema.Events:
    """The newest events, or the newest before a position, in ascending order."""
    end = feed.position + 1 if before is None else min(before, feed.position + 1)
    after = max(0, end - 1 - limit)
    if after >= feed.oldest:
        found = [item.event for item in feed.items if after < item.event.position < end]
    else:
        found = await older_events(feeds, feed.name, after, end)
    return schema.Events(events=found, last_event=feed.position)


async def round_events(feed: RunFeed, feeds: Feeds, number: int) -> list[schema.EventRow]:
    """The dashboard keeps the newest events; those of an older round are looked for in the server's log from its beginning."""
    kept = [item.event for item in feed.items]
    if feed.oldest == 0 or any(0 < event.round < number for event in kept):
        return [event for event in kept if event.round == number]
    found: list[schema.EventRow] = []
    async for message in feeds.observer.watch(feed.name, 0):
        if message.event.round == number:
            found.append(view.event_of(message.event))
        if message.event.round > number + 1 or message.event.position >= feed.position:
            break
    return found


async def older_events(feeds: Feeds, name: str, after: int, end: int) -> list[schema.EventRow]:
    found: list[schema.EventRow] = []
    if end <= after + 1:
        return found
    async for message in feeds.observer.watch(name, after):
        if message.event.position < end:
            found.append(view.event_of(message.event))
        if message.event.position >= end - 1:
            break
    return found


@router.get(
    "/runs/{name}/charts/{chart}",
    response_class=Response,
    responses={200: {"content": {"application/json": {"schema": {"type": "array"}}, "text/csv": {"schema": {"type": "string"}}}}},
)
async def export_chart(feed: Feed, chart: Chart, format: Format = "json") -> Response:
    """The data behind a chart, every round, as JSON records or CSV."""
    return exported(exports.CHARTS[chart](feed), f"{feed.name}-{chart}", format)


@router.get(
    "/runs/{name}/models/{version}",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def download_model(feed: Feed, feeds: AllFeeds, version: Annotated[int, Path(ge=0, le=LARGEST)]) -> Response:
    """A kept model as a safetensors file."""
    parts = feeds.observer.download(feed.name, version)
    first = await anext(parts, None)

    async def body() -> AsyncIterator[bytes]:
        async for part in parts:
            yield part.chunk

    if first is None or not first.HasField("header"):
        raise NotFoundError(f"The server has no model version {version} of run {feed.name}.")
    headers = {"Content-Disposition": f'attachment; filename="{feed.name}-v{version}.safetensors"'}
    headers["Content-Length"] = str(first.header.size)
    return StreamingResponse(body(), media_type="application/octet-stream", headers=headers)


RunNames = Annotated[list[Annotated[str, Query(pattern=schema.NAME)]], Query(min_length=1, max_length=8)]


@router.get("/compare")
async def compare(request: Request, feeds: AllFeeds, run: RunNames, points: Points = None) -> schema.Comparison:
    """Several runs side by side."""
    found = []
    for name in dict.fromkeys(run):
        feed = await feeds.get(name)
        rows = feed.history.thinned(points or request.app.state.settings.chart_points)
        assert feed.answer is not None  # loaded by `get`
        found.append(schema.ComparedRun(run=feed.run(), settings=view.settings_of(feed.answer.manifest.manifest), rows=rows))
    return schema.Comparison(runs=found)


@router.get(
    "/compare/{metric}",
    response_class=Response,
    responses={200: {"content": {"application/json": {"schema": {"type": "array"}}, "text/csv": {"schema": {"type": "string"}}}}},
)
async def export_comparison(feeds: AllFeeds, metric: Metric, run: RunNames, format: Format = "json") -> Response:
    """One figure of several runs, a column per run, as JSON records or CSV."""
    chosen = [await feeds.get(name) for name in dict.fromkeys(run)]
    return exported(exports.compared(metric, chosen), f"compare-{metric}", format)


def exported(table: exports.Table, name: str, format: Format) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}.{format}"'}
    if format == "csv":
        return Response(exports.as_csv(table), media_type="text/csv; charset=utf-8", headers=headers)
    return JSONResponse(exports.as_records(table), headers=headers)


STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


@router.get("/live", response_class=EventSourceResponse, responses=STREAM)
async def watch_overview(request: Request, feeds: AllFeeds) -> EventSourceResponse:
    """Server-sent events for the overview: `runs` and `server`."""
    return stream(request, live.overview_stream(feeds))


@router.get("/runs/{name}/live", response_class=EventSourceResponse, responses=STREAM)
async def watch_run(
    request: Request,
    feed: Feed,
    feeds: AllFeeds,
    after: Annotated[int | None, Query(ge=0, le=LARGEST, description="Continue after this position.")] = None,
    last_event_id: Annotated[str, Header(description="Sent by browsers that reconnect; wins over `after`.")] = "",
) -> EventSourceResponse:
    """Server-sent events of one run: `event`, `round`, `run`, `server` and `reset`; the id is the event's position."""
    known = last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 16
    start = int(last_event_id) if known else (feed.position if after is None else after)
    return stream(request, live.run_stream(feed, feeds.observer, start))


def stream(request: Request, messages: AsyncIterator[live.Message]) -> EventSourceResponse:
    seconds = request.app.state.settings.heartbeat_seconds
    return EventSourceResponse(
        request.app.state.metrics.counted(messages),
        ping=seconds,
        ping_message_factory=lambda: ServerSentEvent(event="ping", data="{}"),  # a comment would not reach the page
        headers={"X-Accel-Buffering": "no"},
    )
