"""`docs/api-changes.md` says what is deprecated and until when, and what a client of the last release misses."""

import json
import re
from datetime import date, timedelta

from litestar.routes import HTTPRoute

from muster_server.systems.http.deprecated import DAYS_MIN, Deprecated, Marks, headers
from tests.documents import ROOT, cells, spans
from tests.http.conftest import Make
from tests.http.contract import Contract, additions, changes, contract

PAGE = (ROOT / "docs" / "api-changes.md").read_text()
RELEASES = ROOT / "tests" / "http" / "releases"
LAST_VERSION = "0.2.0"
LAST: Contract = json.loads((RELEASES / f"{LAST_VERSION}.json").read_text())
MARK = Deprecated("after", date(2027, 1, 1), date(2027, 12, 1))


async def test_each_deprecated_parameter_is_on_the_page(make: Make) -> None:
    beside = await make()
    application = beside.server._application()
    found: dict[tuple[str, str, str], Deprecated] = {}
    for route in application.routes:
        if isinstance(route, HTTPRoute):
            for method, (handler, _) in route.route_handler_map.items():
                marks: Marks = handler.opt.get("deprecated", {})
                for word, mark in marks.items():
                    found[method, route.path_format, word] = mark
    rows = list(cells(PAGE, "route", "parameter", "instead", "works until at least"))
    said = {(*row[0].strip("`").split(" "), spans(row[1]).pop()): (spans(row[2]).pop(), row[3]) for row in rows}
    assert said == {place: (mark.instead, mark.sunset.isoformat()) for place, mark in found.items()}
    document = (await beside.client().get("/openapi.json")).json()
    marked = {
        (method.upper(), path, each["name"])
        for path, item in document["paths"].items()
        for method, operation in item.items()
        for each in operation.get("parameters", [])
        if each.get("deprecated")
    }
    assert marked == found.keys()
    for mark in found.values():
        assert mark.sunset - mark.since >= timedelta(days=DAYS_MIN)
        assert mark.since <= date.today(), "its headers would lie"


def test_the_headers_say_the_earliest_end() -> None:
    later = Deprecated("x", date(2027, 2, 1), date(2028, 1, 1))
    said = [(b"deprecation", b"@1798761600"), (b"sunset", b"Wed, 01 Dec 2027 00:00:00 GMT")]
    assert headers([later, MARK]) == said
    assert headers([]) == []


async def test_what_clients_of_the_last_release_miss_is_on_the_page(make: Make) -> None:
    document = (await (await make()).client().get("/openapi.json")).json()
    missed = changes(LAST, contract(document))
    said = {row[0].strip("`") for row in cells(PAGE, "route", "0.2.0", "now", "mend")}
    assert said == missed.keys(), missed


async def test_what_is_new_since_the_last_release_is_on_the_page(make: Make) -> None:
    document = (await (await make()).client().get("/openapi.json")).json()
    said = {each: (set[str](), set[str]()) for row in cells(PAGE, "new route", "what") for each in operations(row[0])}
    for row in cells(PAGE, "route", "new parameters", "new fields"):
        said[row[0].strip("`")] = spans(row[1]), spans(row[2])
    assert said == additions(LAST, contract(document))


def operations(cell: str) -> list[str]:
    """The operations of a cell: methods before a path are all of it."""
    found: list[str] = []
    methods: list[str] = []
    for text in re.findall("`([^`]+)`", cell):
        method, _, path = text.partition(" ")
        methods.append(method)
        if path:
            found += [f"{each} {path}" for each in methods]
            methods = []
    assert not methods, cell
    return found


def test_the_contract_of_the_last_release_is_there() -> None:
    """At a release: `tests/http/contract.py` says how it is written."""
    newest = re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert (RELEASES / f"{newest}.json").is_file()
    assert newest == LAST_VERSION


def test_each_kind_of_loss_is_found() -> None:
    old = {"parameters": ["a", "b"], "needs": [], "answers": {"200": ["x", "y"], "202": ["z"]}}
    now = {"parameters": ["b", "c"], "needs": ["c"], "answers": {"200": ["x", "new"]}}
    said = ["parameter a is gone", "parameter c is needed", "field y of 200 is gone", "the answer 202 is gone"]
    assert changes({"GET /a": old}, {"GET /a": now}) == {"GET /a": said}
    assert changes({"GET /a": old}, {}) == {"GET /a": ["the route is gone"]}
    array = {"parameters": [], "needs": [], "answers": {"200": "array"}}
    other = array | {"answers": {"200": ["x"]}}
    assert changes({"GET /a": array}, {"GET /a": other}).keys() == {"GET /a"}
    assert changes({"GET /a": other}, {"GET /a": array}).keys() == {"GET /a"}
    assert changes({"GET /a": other}, {"GET /a": other, "GET /b": array}) == {}
    assert additions({"GET /api/v1/a": old}, {"GET /api/v1/a": now, "PUT /api/v1/b": other, "GET /api/c": other}) == {
        "GET /api/v1/a": ({"c"}, {"new"}),
        "PUT /api/v1/b": (set(), set()),
    }
