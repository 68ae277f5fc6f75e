"""The server: Gradio behind a gate that limits every request, and an endpoint for uploads.

Gradio's own upload leaves files on disk and fetches any URL that a client names. The app needs neither: a picture goes
to POST /picture and comes back as a small PNG. Every path that the page does not need is closed.

Memory is bounded whatever clients do. At most MAX_READERS requests of MAX_REQUEST_BYTES and MAX_UPLOADS pictures of
MAX_UPLOAD_BYTES are read at once: 150 MB in all. One upload of at most MAX_UPLOAD_PIXELS is decoded at a time, which
takes Pillow up to 475 MB. At most MAX_QUEUE questions of MAX_REQUEST_BYTES wait, 128 MB and as much again once parsed,
and WORKERS are answered at once. Gradio keeps up to 2,000 answers of some 60 kB that nobody fetched: 120 MB. Together
this is less than 1 GB on top of the 400 MB of an idle server, not counting models.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mspcaps.app.layout import head, import_gradio, layout, theme
from mspcaps.app.store import ModelStore
from mspcaps.app.uploads import MAX_UPLOAD_BYTES, accept
from mspcaps.errors import MspcapsError, as_user_error
from mspcaps.files import format_bytes

if TYPE_CHECKING:
    import gradio as gr

WORKERS = 2
MAX_QUEUE = 128
MAX_READERS = 16
MAX_UPLOADS = 4
MAX_SESSIONS = 256  # that Gradio remembers, at some 80 kB each; we store nothing in them
MAX_SECONDS = 30  # until the bytes of a request must have arrived
MAX_REQUEST_BYTES = 1 << 20
MAX_DISCARDED_BYTES = 64 << 20
UPLOAD_PATH = "/picture"
OPEN_PATHS = (
    *("/assets/", "/static/", "/config", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json", UPLOAD_PATH),
    *("/gradio_api/queue/", "/gradio_api/call/", "/gradio_api/info", "/gradio_api/heartbeat/", "/gradio_api/reset"),
    *("/gradio_api/startup-events", "/gradio_api/app_id", "/gradio_api/cancel", "/gradio_api/theme.css"),
)


@dataclass(frozen=True)
class Running:
    """A server that runs in threads of this process."""

    url: str
    blocks: "gr.Blocks"

    def close(self) -> None:
        self.blocks.close(verbose=False)

    def wait(self) -> None:
        """Block until Ctrl-C."""
        self.blocks.block_thread()


def start(store: ModelStore, host: str = "127.0.0.1", port: int | None = None) -> Running:
    """Serve the page; the default port is the first free one from 7860 on."""
    gradio = import_gradio()
    check_address(host, port)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // WORKERS))  # the workers share the cores
    blocks = layout(gradio, store, WORKERS)
    blocks.queue(max_size=MAX_QUEUE, default_concurrency_limit=WORKERS)
    with as_user_error(f"cannot listen on {host}"):  # another process may have taken the address since the check
        _, url, _ = blocks.launch(
            server_name=host,
            server_port=port,
            share=False,
            prevent_thread_lock=True,
            quiet=True,
            show_error=True,  # Gradio's own refusals are shown, too
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            state_session_capacity=MAX_SESSIONS,
            max_file_size=1,  # Gradio's own upload is closed
            theme=theme(gradio),
            head=head(),
            app_kwargs={
                "middleware": [Middleware(Gate)],
                "routes": [Route(UPLOAD_PATH, upload_endpoint(), methods=["POST"])],
                "exception_handlers": {Exception: not_understood},
            },
        )
    return Running(url, blocks)


def check_address(host: str, port: int | None) -> None:
    """Refuse an address where the server cannot listen: Gradio would wait for seconds and then mislead."""
    if port is not None and not 0 < port < 65536:
        raise MspcapsError(f"port {port} does not exist: ports are numbered 1 to 65535")
    where = host if port is None else f"{host}, port {port}"
    with as_user_error(f"cannot listen on {where}"):
        socket.create_server((host, port or 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()


class Gate:
    """ASGI middleware that closes unused paths and limits the size, time and number of requests."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.readers, self.uploads = asyncio.Semaphore(MAX_READERS), asyncio.Semaphore(MAX_UPLOADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return  # the page uses none
        if scope["type"] == "http" and scope["path"] != "/" and not scope["path"].startswith(OPEN_PATHS):
            await refusal(404, "the app serves nothing at this address")(scope, receive, send)
        elif scope["type"] == "http" and scope["method"] not in ("GET", "HEAD"):
            upload = scope["path"] == UPLOAD_PATH
            async with self.uploads if upload else self.readers:  # until answered: waiting bodies take memory, too
                try:
                    limit = MAX_UPLOAD_BYTES if upload else MAX_REQUEST_BYTES
                    body = await read_body(Request(scope, receive), limit)
                except HTTPException as error:
                    return await refusal(error.status_code, error.detail)(scope, receive, send)
                await self.app(scope, replay(body, receive), send)
        else:
            await self.app(scope, receive, send)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; HTTPException if it is too large or arrives too slowly.

    A body that is a little too large is read to the end and discarded: most clients read no answer before they have
    sent everything.
    """
    too_large = HTTPException(413, f"the request is larger than the limit of {format_bytes(limit)}")
    if int(request.headers.get("content-length", 0)) > MAX_DISCARDED_BYTES:
        raise too_large
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(MAX_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MAX_DISCARDED_BYTES:
                    raise too_large
                if size <= limit:
                    body += part
    except TimeoutError as error:
        raise HTTPException(408, f"the request took longer than {MAX_SECONDS} seconds to arrive") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the request ended early") from error
    if size > limit:
        raise too_large
    return bytes(body)


def replay(body: bytes, receive: Receive) -> Receive:
    """Give the body first, then later messages, such as a disconnect."""
    bodies = [body]

    async def receive_again() -> Message:
        return {"type": "http.request", "body": bodies.pop(), "more_body": False} if bodies else await receive()

    return receive_again


def refusal(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status)


async def not_understood(request: Request, error: Exception) -> JSONResponse:
    """Some malformed requests raise exceptions inside Gradio; uvicorn logs them."""
    return refusal(400, "the app does not understand this request")


def upload_endpoint() -> Callable[[Request], Awaitable[JSONResponse]]:
    """POST /picture: the bytes of a file -> {"picture": ...} or {"error": one sentence}."""
    decoding = asyncio.Lock()

    async def post(request: Request) -> JSONResponse:
        async with decoding:
            try:
                return JSONResponse({"picture": await run_in_threadpool(accept, await request.body())})
            except MspcapsError as error:
                return refusal(422, str(error))

    return post
