"""The page of the console and its files, from the package. It loads nothing from other servers, and has no inline
script: its Content-Security-Policy allows neither."""

from functools import cache
from pathlib import Path
from typing import Final

from litestar import Response, get
from litestar.params import FromPath

from muster_server.systems.http.problems import Problem

ASSETS: Final = Path(__file__).parents[1] / "assets"
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
OPEN: Final = frozenset({"/", "/healthz", "/readyz"})
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = tuple(
    (name.encode(), value.encode())
    for name, value in {
        "content-security-policy": POLICY,
        "cache-control": "no-store",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }.items()
)
"""Headers of every answer, unless the route sets others."""


@get("/", include_in_schema=False, sync_to_thread=False)
def page() -> Response[bytes]:
    """The page; its part after `#` names what it shows."""
    return Response(files()["index.html"], media_type=TYPES[".html"])


@get("/assets/{file:path}", include_in_schema=False, sync_to_thread=False)
def asset(file: FromPath[Path]) -> Response[bytes]:
    """A file of the page."""
    name = str(file).lstrip("/")
    found = files().get(name)
    if found is None:
        raise Problem("not_found")
    return Response(found, media_type=TYPES[Path(name).suffix], headers={"cache-control": "no-cache"})


@cache
def files() -> dict[str, bytes]:
    """All files by their names below the folder: what is not in the package cannot be asked for."""
    found = (each for each in ASSETS.rglob("*") if each.suffix in TYPES)
    return {each.relative_to(ASSETS).as_posix(): each.read_bytes() for each in found}
