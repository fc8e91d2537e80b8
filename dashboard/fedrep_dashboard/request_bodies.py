"""How large a request may be. FastAPI reads a JSON body whole before it asks who sent it, so the limit is before both."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedrep_dashboard import schema

# The largest that anybody means: an amendment that names 1,000 silos to add and 1,000 to remove takes 134 KB.
LARGEST_BODY: Final = 256 * 1024
REASON: Final = "TOO_LARGE"
TOO_LARGE: Final = f"This request's body is larger than the {LARGEST_BODY // 1024} KiB that this address takes. Send less."
CLOSE: Final = {"Connection": "close"}  # or what is left of the body would be read to its end


class LimitBodies:
    """`streaming` are paths whose route knows the caller before it reads, and keeps a limit of its own while it does."""

    def __init__(self, app: ASGIApp, streaming: frozenset[str]) -> None:
        self._app = app
        self._streaming = streaming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._streaming:
            await self._app(scope, receive, send)
            return
        claimed = Headers(scope=scope).get("content-length", "")
        if claimed.isdecimal() and int(claimed) > LARGEST_BODY:
            problem = schema.Problem(reason=REASON, detail=TOO_LARGE)
            await JSONResponse(problem.model_dump(), 413, CLOSE)(scope, receive, send)
            return
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > LARGEST_BODY:  # came in chunks, without a length
                raise HTTPException(413, TOO_LARGE, CLOSE)
            return message

        await self._app(scope, limited, send)
