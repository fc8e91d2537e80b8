"""The dashboard as an ASGI application: REST, live streams, probes, and the built pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import grpc
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import compile_path

from fedrep.errors import FedrepError
from fedrep_dashboard import actions, api, creation, orders, schema, uploads
from fedrep_dashboard.auth import Gate
from fedrep_dashboard.connection import Connection, connection_from
from fedrep_dashboard.feed import Feeds
from fedrep_dashboard.metrics import CountRequests, Metrics
from fedrep_dashboard.observer import Observer, ServerRefusedError, background
from fedrep_dashboard.request_bodies import REASON as TOO_LARGE
from fedrep_dashboard.request_bodies import LimitBodies
from fedrep_dashboard.security import SecurityHeaders
from fedrep_dashboard.settings import DashboardSettings
from fedrep_identity.upkeep import tend_credentials

STATIC = Path(__file__).parent / "static"
NOT_BUILT = "The pages are not built. Run `npm ci && npm run build` in dashboard/web; the REST interface works meanwhile."

_HTTP = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "UNAVAILABLE": 503,
}


def create_app(settings: DashboardSettings, connection: Connection | None = None) -> FastAPI:
    """`connection` is made from the settings unless one is handed in."""
    connection = connection or connection_from(settings)
    observer = Observer(connection.open_channel, settings.server)
    feeds = Feeds(observer, settings.poll_seconds)

    async def tended() -> None:
        if settings.credentials is not None:
            await tend_credentials(settings.credentials, lambda _: feeds.reopen())

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await observer.start()
        async with background(feeds.poll), background(tended):
            yield
        await feeds.close()
        await observer.close()
        app.state.uploads.close()

    app = FastAPI(
        title="FedREP dashboard",
        summary="Runs, rounds, silos and privacy of a FedREP federation.",
        description=(
            "Send `Authorization: Bearer TOKEN` with the viewer or admin token. Times are Unix seconds, sizes bytes. "
            "Every error is an object with `reason` (for programs) and `detail` (for people)."
        ),
        version=version("fedrep"),
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.settings = settings
    app.state.connection = connection
    app.state.gate = Gate(settings)
    app.state.feeds = feeds
    app.state.uploads = uploads.Uploads(settings.largest_model_mb)
    app.state.metrics = Metrics(observer, settings.credentials)
    app.include_router(api.session_router)
    app.include_router(api.router)
    app.include_router(actions.router)
    app.include_router(orders.router)
    app.include_router(uploads.router)
    app.include_router(creation.router)
    _add_probes(app, observer)
    _add_errors(app)
    _add_pages(app)
    app.add_middleware(GZipMiddleware, minimum_size=2048)
    app.add_middleware(LimitBodies, streaming=frozenset({uploads.ADDRESS}))
    app.add_middleware(CountRequests, metrics=app.state.metrics)
    app.add_middleware(SecurityHeaders, https=settings.web_certificate is not None)
    return app


def _add_probes(app: FastAPI, observer: Observer) -> None:
    @app.get("/healthz", tags=["probes"])
    def healthz() -> dict[str, str]:
        """The process runs."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["probes"])
    def readyz() -> dict[str, str]:
        """Pages can be served. They are served without the server too: somebody has to say that it is down."""
        return {"status": "ok", "server": "reachable" if observer.state.reachable else "unreachable"}


def _add_errors(app: FastAPI) -> None:
    def answer(status: int, reason: str, detail: str) -> JSONResponse:
        return JSONResponse(schema.Problem(reason=reason, detail=detail).model_dump(), status)

    @app.exception_handler(FedrepError)
    def refused(_request: Request, error: FedrepError) -> JSONResponse:
        status = 413 if isinstance(error, uploads.TooLargeError) else _HTTP.get(error.status, 500)
        if isinstance(error, ServerRefusedError):
            # That the server does not accept the dashboard's certificate is not the visitor's fault.
            own_fault = error.code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
            status = 502 if own_fault else _HTTP.get(error.code.name, 502)
        return answer(status, error.reason, str(error))

    @app.exception_handler(RequestValidationError)
    def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        problems = [f"{'.'.join(str(part) for part in e['loc'][1:]) or e['loc'][0]}: {e['msg']}" for e in error.errors()]
        return answer(422, "INVALID_REQUEST", "; ".join(problems))

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> JSONResponse:
        detail = "There is nothing at this address." if error.status_code == 404 else str(error.detail)
        result = answer(error.status_code, TOO_LARGE if error.status_code == 413 else "HTTP", detail)
        result.headers.update(error.headers or {})
        if error.status_code == 405:
            result.headers["Allow"] = ", ".join(sorted(_methods(app, request)))
        return result


def _methods(app: FastAPI, request: Request) -> set[str]:
    """All methods of an address; starlette names only those of the first route that has it."""
    found: set[str] = set()
    for path, methods in app.openapi()["paths"].items():
        if compile_path(path)[0].match(request.url.path):
            found.update(method.upper() for method in methods)
    return found


def _add_pages(app: FastAPI) -> None:
    app.mount("/assets", StaticFiles(directory=STATIC / "assets", check_dir=False), name="assets")

    async def page() -> Response:
        index = STATIC / "index.html"
        return FileResponse(index, media_type="text/html") if index.exists() else Response(NOT_BUILT, 503)

    for path in ("/", "/runs/{name}", "/runs/{name}/silos", "/runs/{name}/rounds/{number}", "/compare", "/new"):
        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)

    @app.get("/favicon.svg", include_in_schema=False)
    async def icon() -> Response:
        return FileResponse(STATIC / "favicon.svg", media_type="image/svg+xml")
