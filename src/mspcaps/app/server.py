"""In front of Gradio: which requests get through, how large they may be, and the way in for uploads.

Gradio's own upload writes files that stay, and fetches addresses that a caller names. The app needs neither: a picture
goes to POST /picture, is read in memory and comes back small. Everything the page does not need is closed.

Bounds, whoever calls: at most READERS requests are taken in at once, each of at most REQUEST_BYTES (a picture:
UPLOAD_BYTES), 128 MB in all; one upload is decoded at a time, of at most UPLOAD_PIXELS, for which Pillow takes up to
320 MB; at most QUEUE questions of REQUEST_BYTES wait, 128 MB and as much again once parsed, and WORKERS are answered at
once. Gradio keeps up to 2,000 answers of some 60 kB that nobody fetched, 120 MB. Together less than 1 GB beyond the
400 MB of a server at rest, models apart.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mspcaps.app.uploads import UPLOAD_BYTES, accept
from mspcaps.errors import MspcapsError

WORKERS = 2
QUEUE = 128
READERS = 16
SESSIONS = 256  # visitors that Gradio remembers, at some 80 kB each; we keep nothing about them
SECONDS = 30  # for the bytes of one request to arrive
REQUEST_BYTES = 1 << 20
MAX_UPLOAD = 64 << 20
UPLOAD_PATH = "/picture"
OPEN = (
    *("/assets/", "/static/", "/config", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json", UPLOAD_PATH),
    *("/gradio_api/queue/", "/gradio_api/call/", "/gradio_api/info", "/gradio_api/heartbeat/", "/gradio_api/reset"),
    *("/gradio_api/startup-events", "/gradio_api/app_id", "/gradio_api/cancel", "/gradio_api/theme.css"),
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Gate:
    """ASGI middleware."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.readers = asyncio.Semaphore(READERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # the page uses no web sockets
        try:
            path = scope["path"]
            if path != "/" and not path.startswith(OPEN):
                raise Refused(404, "the app serves nothing at this address")
            if scope["method"] in ("GET", "HEAD"):
                return await self.answered(scope, receive, send)
            async with self.readers:  # until it is answered: bodies that wait take memory, too
                body = await read_body(scope, receive, UPLOAD_BYTES if path == UPLOAD_PATH else REQUEST_BYTES)
                return await self.answered(scope, replayed(body, receive), send)
        except Refused as refused:
            return await JSONResponse({"error": str(refused)}, refused.status)(scope, receive, send)

    async def answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A sentence also where Gradio stumbles over a request, as it does over some that are not what it expects."""
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception:
            logging.getLogger(__name__).exception("a request failed: %s %s", scope["method"], scope["path"])
            if not begun:
                await JSONResponse({"error": "the app does not understand this request"}, 400)(scope, receive, send)


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body; Refused if it is too large or comes too slowly. Memory never holds more than the limit.

    What is a little too large is heard out and thrown away: most callers listen to an answer only when they have
    finished talking.
    """
    too_large = Refused(413, f"the request is larger than the limit of {limit:,} bytes")
    promised = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if not promised.isdigit() or int(promised) > MAX_UPLOAD:
        raise too_large
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(SECONDS):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "the request ended early")
                part, more = message.get("body", b""), message.get("more_body", False)
                size += len(part)
                if size > MAX_UPLOAD:
                    raise too_large
                if size <= limit:
                    parts.append(part)
                else:
                    parts.clear()
    except TimeoutError as error:
        raise Refused(408, f"the request took longer than {SECONDS} seconds to arrive") from error
    if size > limit:
        raise too_large
    return b"".join(parts)


def replayed(body: bytes, receive: Receive) -> Receive:
    """The body first, then whatever comes after it, such as the news that the caller has left."""
    left = [body]

    async def again() -> Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return again


class Uploads:
    """POST /picture: the bytes of a file -> {"picture": ...} or {"error": one sentence}."""

    def __init__(self) -> None:
        self.decoder = asyncio.Lock()

    async def post(self, request: Request) -> Response:
        async with self.decoder:
            try:
                return JSONResponse({"picture": await run_in_threadpool(accept, await request.body())})
            except MspcapsError as error:
                return JSONResponse({"error": str(error)}, 422)
