"""A web server: `python -m portal.web FD`, on a socket that its parent has opened. SIGTERM drains it."""

import contextlib
import logging
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import uvicorn
import uvloop
from litestar import Litestar, Response, asgi, get
from litestar.config.allowed_hosts import AllowedHostsConfig
from litestar.datastructures import ResponseHeader
from litestar.static_files import create_static_files_router
from litestar.types import Receive, Scope, Send

from . import inbox, jobs, letters, orders, people, shares, staff
from . import settings as stored
from .accounts import routes as account_routes
from .accounts.sessions import Sessions
from .desk import FORM_BYTES_MAX, enter, failed, leave
from .services import opened
from .settings import Settings
from .shares import Pages

DRAIN_S: Final = 10
STATIC: Final = Path(__file__).parent / "static"


@get("/healthz")
async def healthz() -> Response[str]:
    """The process serves."""
    return Response("ok\n", media_type="text/plain")


def _policy(settings: Settings) -> str:
    """Scripts, styles and connections that a page may use: its own, and the edge."""
    edge = urlsplit(settings.edge_url)
    where = f" {edge.scheme}://{edge.netloc}" if edge.netloc else ""  # else the front has it, so it is our own
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
        f"base-uri 'none'; frame-ancestors 'none'; connect-src 'self'{where}"
    )


def application(settings: Settings) -> Litestar:
    """The portal as an ASGI application."""
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each question

    @contextlib.asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        async with opened(settings) as services:
            app.state.services = services
            app.state.sessions = Sessions(services)
            app.state.pages = Pages(services)
            yield
            await jobs.tasks.close()

    @asgi("/muster/checks", is_mount=True)
    async def checks(scope: Scope, receive: Receive, send: Send) -> None:
        await app.state.services.transactions(scope, receive, send)

    headers = {
        "Content-Security-Policy": _policy(settings),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
    }
    hosts = [urlsplit(origin).netloc for origin in {*settings.origins, *settings.servers}]
    app = Litestar(
        [
            healthz,
            checks,
            create_static_files_router("/static", [STATIC]),
            *account_routes.ROUTES,
            *shares.ROUTES,
            *inbox.ROUTES,
            *people.ROUTES,
            *letters.ROUTES,
            *orders.ROUTES,
            *staff.ROUTES,
        ],
        lifespan=[lifespan],
        before_request=enter,
        before_send=[leave],
        exception_handlers={Exception: failed},
        response_headers=[ResponseHeader(name=name, value=value) for name, value in headers.items()],
        allowed_hosts=AllowedHostsConfig(allowed_hosts=hosts),
        request_max_body_size=FORM_BYTES_MAX,
        openapi_config=None,
    )
    return app


async def serve(listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    settings = stored.load()
    config = uvicorn.Config(
        application(settings),
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=DRAIN_S,
        proxy_headers=bool(settings.fronts),  # a stranger must not choose the address that its tries are counted for
        forwarded_allow_ips=list(settings.fronts),
    )
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        uvloop.run(serve(listener))
