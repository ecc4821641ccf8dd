"""A web server of `examples/portal` for a bench: `python -m bench.portal_server PORT cached|plain`.

`plain` is the same portal without its cache: each call loads. `/bench` answers the counts of pages and of database
reads for them. It must not know what is measured.
"""

import contextlib
import contextvars
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec
import uvicorn
import uvloop

from portal import services, settings, web

PATH: Final = "/bench"
counts: Counter[str] = Counter({"pages": 0, "database reads": 0})
_is_page: Final = contextvars.ContextVar("is_page", default=False)


class Plain:
    """In the place of a cache: keeps nothing."""

    def __init__(self, url: str, *, name: str) -> None:
        pass

    async def __aenter__(self) -> "Plain":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def cached(self, key: str, **options: Any) -> Callable[[Callable[..., Awaitable[Any]]], "Loaded"]:
        """As `Cache.cached`."""
        return lambda load: Loaded(key, load)

    @contextlib.asynccontextmanager
    async def changing(self, *keys: str) -> AsyncIterator["Plain"]:
        """As `Cache.changing`."""
        yield self

    async def drop(self, *keys: str) -> None:
        """As `Cache.drop`."""

    def check(self) -> None:
        """As of a change."""


class Loaded:
    """A function that loads at each call."""

    def __init__(self, key: str, load: Callable[..., Awaitable[Any]]) -> None:
        self._key, self._load = key, load

    async def __call__(self, *args: Any) -> Any:
        return await self._load(*args)

    strict = __call__

    def key(self, *args: Any) -> str:
        """A text."""
        return f"{self._key} {args}"


class Counted(services.Services):
    """Counts the sessions that pages open; each has a read or two."""

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[Any]:
        counts["database reads"] += _is_page.get()
        async with super().writing() as session:
            yield session

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[Any]:
        counts["database reads"] += _is_page.get()
        async with super().reading() as session:
            yield session


async def main(port: int, *, cached: bool) -> None:
    """Serve until SIGTERM."""
    if not cached:
        services.Cache = Plain  # type: ignore[assignment, attr-defined]
    services.Services = Counted  # type: ignore[misc]
    given = settings.load()
    inner = web.application(given)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if scope["path"] == PATH:
                head = [(b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": 200, "headers": head})
                body = msgspec.json.encode(counts)
                await send({"type": "http.response.body", "body": body, "more_body": False})
                return
            is_page = scope["method"] == "GET"
            counts["pages"] += is_page
            _is_page.set(is_page)
        await inner(scope, receive, send)

    config = uvicorn.Config(application, log_level="warning", lifespan="on")
    # With its protocol named: asyncio gives accepted sockets TCP_NODELAY only then.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(256)
        await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), cached=sys.argv[2] == "cached"))
