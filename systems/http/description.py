"""The description of the API (OpenAPI 3.1): what the framework derives from the routes, mended where clients are generated
from it. Bodies come from `opt["body"]`, as routes decode them themselves.

Knows no route and no page.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from litestar import Litestar
from litestar.enums import MediaType
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from litestar.types import Method

from muster_server.systems.http.bodies import Body
from muster_server.systems.http.problems import CONTENT_TYPE

REF: Final = "#/components/schemas/"
EVENTS: Final = "text/event-stream"
"""Described for the routes with `opt["events"]`, which answer a stream if `Accept` has this type."""
PROBLEM: Final = "Problem"
ANY: Final = "application/octet-stream"
"""The described type of a body that may have any `Content-Type`."""


class ProblemDocument(msgspec.Struct, frozen=True):
    """An error (RFC 9457). `retry_after` in seconds."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    request_id: str
    retry_after: float | None = None


def operation_id(handler: HTTPRouteHandler, method: Method, path: Any) -> str:
    """The name of an operation in generated clients: the system and the function, such as `rooms_publish`."""
    return f"{_system(handler)}_{handler.handler_name.rpartition('.')[2]}"


def described(app: Litestar) -> dict[str, Any]:
    """The description of all routes."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    components = document.setdefault("components", {}).setdefault("schemas", {})
    _shorten(document)
    for route in app.routes:
        operations = document["paths"].get(route.path_format, {})
        if not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            for method in handler.http_methods & {each.upper() for each in operations}:
                operation = operations[method.lower()]
                _mark_deprecated(operation, handler)
                _describe_problems(operation)
                if handler.opt.get("events"):
                    operation["responses"]["200"]["content"][EVENTS] = {"schema": {"type": "string"}}
                if body := handler.opt.get("body"):
                    operation["requestBody"] = _body(body, _system(handler), components)
    components[PROBLEM] = msgspec.json.schema_components([ProblemDocument], ref_template=REF + "{name}")[1][
        "ProblemDocument"
    ]
    for name, part in components.items():
        part["title"] = name
    for each in _objects(document):
        if isinstance(pattern := each.get("pattern"), str):
            each["pattern"] = pattern.replace(r"\Z", "$")  # patterns are those of ECMA-262
    return document


def _system(handler: HTTPRouteHandler) -> str:
    """The system of a route, from the folder of its function."""
    return handler.fn.__module__.partition(".systems.")[2].partition(".")[0]


def _shorten(document: dict[str, Any]) -> None:
    """Name the parts that the framework names by their module: `likes_http_answers_Batch` becomes `LikesBatch`."""
    components = document["components"]["schemas"]
    new = {name: _short(name) for name in components if "_" in name}
    assert not set(new.values()) & components.keys()
    for name in list(components):
        components[new.get(name, name)] = components.pop(name)
    _rename(document, new)


def _short(name: str) -> str:
    system, *_, last = name.split("_")
    return system.title() + last


def _mark_deprecated(operation: dict[str, Any], handler: HTTPRouteHandler) -> None:
    for word, mark in handler.opt.get("deprecated", {}).items():
        parameter = next(each for each in operation["parameters"] if each["name"] == word)
        parameter |= {"deprecated": True, "description": mark.text}


def _describe_problems(operation: dict[str, Any]) -> None:
    """All errors have one shape; each route may refuse the path, the query or the body."""
    content = {CONTENT_TYPE: {"schema": {"$ref": REF + PROBLEM}}}
    malformed = {"description": "A problem: the path, the query or the body is malformed"}
    operation["responses"]["400"] = malformed
    for status, response in operation["responses"].items():
        if int(status) >= 400:
            response["content"] = content


def _body(body: Body, system: str, components: dict[str, Any]) -> dict[str, Any]:
    """The description of a body; its parts are added to the components."""
    schemas, parts = msgspec.json.schema_components(body.shapes, ref_template=REF + "{name}")
    new = {name: _name_of_part(name, part, system, components) for name, part in parts.items()}
    _rename([list(schemas), parts], new)
    components.update({new[name]: part for name, part in parts.items()})
    shape = schemas[0] if len(schemas) == 1 else {"oneOf": list(schemas)}
    content: dict[str, Any] = {MediaType.JSON: {"schema": shape}}
    for kind, text in body.others.items():
        content[ANY if kind == "*/*" else kind] = {
            "schema": {"type": "string", "format": "binary", "description": text}
        }
    return {"content": content, "required": not body.others}


def _name_of_part(name: str, part: Mapping[str, Any], system: str, components: Mapping[str, Any]) -> str:
    """The first free name of a part of a body; the same part has the same name in all bodies."""
    for each in (name, f"{name}Body", f"{system.title()}{name}", f"{system.title()}{name}Body"):
        if each not in components or components[each] == part:
            return each
    raise AssertionError(f"{name} of {system} needs another name in the description of the API")


def _rename(document: Any, new: Mapping[str, str]) -> None:
    for each in _objects(document):
        if isinstance(ref := each.get("$ref"), str):
            name = ref.removeprefix(REF)
            each["$ref"] = REF + new.get(name, name)


def _objects(document: Any) -> Iterator[dict[str, Any]]:
    """All objects of a document in JSON."""
    if isinstance(document, dict):
        yield document
        for each in list(document.values()):
            yield from _objects(each)
    elif isinstance(document, list | tuple):
        for each in document:
            yield from _objects(each)
