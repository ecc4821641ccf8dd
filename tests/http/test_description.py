"""The description of the API is one that generators of clients take: names, references, patterns and errors."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.conftest import Make


@pytest.fixture
async def document(make: Make) -> dict[str, Any]:
    found: dict[str, Any] = (await (await make()).client().get("/openapi.json")).json()
    return found


def objects(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        for each in part.values():
            yield from objects(each)
    elif isinstance(part, list):
        for each in part:
            yield from objects(each)


async def test_the_description_suits_generators(document: dict[str, Any]) -> None:
    operations = [
        operation
        for path, item in document["paths"].items()
        if path.startswith("/api/v1/")
        for operation in item.values()
    ]
    names = [each["operationId"] for each in operations]
    assert len(names) == len(set(names))
    assert [
        name for name in names if not re.fullmatch(r"(rooms|fleet|messages|likes|presence|inbox)_[a-z_]+", name)
    ] == []
    components = document["components"]["schemas"]
    assert [name for name in components if not re.fullmatch(r"[A-Z][A-Za-z]+", name)] == []
    assert [name for name, part in components.items() if part["title"] != name] == []
    for each in objects(document):
        if isinstance(reference := each.get("$ref"), str):
            assert reference.removeprefix("#/components/schemas/") in components
        if isinstance(pattern := each.get("pattern"), str):
            assert not re.search(r"\\[AZz]|\(\?[^:=!]", pattern), f"{pattern} is not one of ECMA-262"
        assert "*/*" not in each.get("content", {})


async def test_every_error_is_described_as_a_problem(document: dict[str, Any]) -> None:
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for item in document["paths"].values():
        for operation in item.values():
            errors = {status: each for status, each in operation["responses"].items() if int(status) >= 400}
            assert "400" in errors
            assert all(each["content"] == problem for each in errors.values())
    required = set(document["components"]["schemas"]["Problem"]["required"])
    assert required == {"type", "title", "status", "detail", "code", "retryable", "request_id"}


async def test_event_streams_are_described_by_their_type(document: dict[str, Any]) -> None:
    streams = {
        path
        for path, item in document["paths"].items()
        for operation in item.values()
        if "text/event-stream" in operation["responses"]["200"].get("content", {})
    }
    assert streams == {
        "/api/v1/rooms/{room}/messages",
        "/api/v1/direct",
        "/api/v1/fleet/runs/{run}/events",
        "/api/v1/presence/changes",
        "/api/v1/inbox",
    }
