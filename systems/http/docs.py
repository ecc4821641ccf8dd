"""The page of the API: `/docs`, from the files of the package `openapi-ui-bundles`, and `/openapi.json`.

The page loads nothing from other servers, which its Content-Security-Policy enforces.
"""

from functools import cache
from typing import Final

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from openapi_ui_bundles import swagger_ui

from muster_server.systems.http.description import described
from muster_server.systems.http.face import AnyRequest
from muster_server.systems.http.problems import Problem

FILES: Final = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-32x32.png": "image/png",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE: Final = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Muster HTTP API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/page.js"></script>
</body>
</html>
"""
SCRIPT: Final = """\
SwaggerUIBundle({url: "openapi.json", dom_id: "#page", deepLinking: true, validatorUrl: null});
"""


@get("/docs", include_in_schema=False, sync_to_thread=False)
def page() -> Response[str]:
    """The page."""
    return Response(PAGE, media_type="text/html", headers={"content-security-policy": POLICY})


@get("/docs/{file:str}", include_in_schema=False, sync_to_thread=False)
def asset(file: FromPath[str]) -> Response[bytes]:
    """A file of the page."""
    if file == "page.js":
        return Response(SCRIPT.encode(), media_type="text/javascript")
    if file not in FILES:
        raise Problem("not_found")
    return Response(_read(file), media_type=FILES[file], headers={"cache-control": "max-age=86400"})


@get("/openapi.json", include_in_schema=False, sync_to_thread=False)
def schema(request: AnyRequest) -> Response[bytes]:
    """OpenAPI 3.1."""
    document = described(request.app)
    return Response(msgspec.json.encode(document), media_type="application/json")


@cache
def _read(file: str) -> bytes:
    return (swagger_ui.static_path / file).read_bytes()


HANDLERS: Final[tuple[HTTPRouteHandler, ...]] = (page, asset, schema)
