"""The page of the API: `/docs`, from the files of the package `openapi-ui-bundles`, and `/openapi.json`.

The page loads nothing from other servers, which its Content-Security-Policy enforces.
"""

from functools import cache
from typing import Any, Final

import msgspec
from litestar import Litestar, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.routes import HTTPRoute
from openapi_ui_bundles import swagger_ui

from muster_server.systems.http.bodies import Body
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


def described(app: Litestar) -> dict[str, Any]:
    """The description of all routes. The framework does not know bodies, because routes decode them themselves."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    for route in app.routes:
        operations = document["paths"].get(route.path_format, {})
        if not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            for method in handler.http_methods & {each.upper() for each in operations}:
                operation = operations[method.lower()]
                refused = {"description": "A problem: the path, the query or the body is malformed"}
                operation["responses"].setdefault("400", refused)
                for word, mark in handler.opt.get("deprecated", {}).items():
                    parameter = next(each for each in operation["parameters"] if each["name"] == word)
                    parameter |= {"deprecated": True, "description": mark.text}
                if body := handler.opt.get("body"):
                    operation["requestBody"] = _body(body, operation["operationId"], document["components"])
    return document


def _body(body: Body, prefix: str, components: dict[str, Any]) -> dict[str, Any]:
    """The description of a body; its parts are added to the components, under names of this operation."""
    template = f"#/components/schemas/{prefix}{{name}}"
    schemas, parts = msgspec.json.schema_components(body.shapes, ref_template=template)
    components.setdefault("schemas", {}).update({prefix + name: part for name, part in parts.items()})
    shape = schemas[0] if len(schemas) == 1 else {"oneOf": list(schemas)}
    others = {kind: {"schema": {"description": text}} for kind, text in body.others.items()}
    return {"content": {"application/json": {"schema": shape}, **others}, "required": not body.others}


@cache
def _read(file: str) -> bytes:
    return (swagger_ui.static_path / file).read_bytes()


HANDLERS: Final[tuple[HTTPRouteHandler, ...]] = (page, asset, schema)
