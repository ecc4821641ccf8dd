"""`docs/api-changes.md` says what is deprecated and until when, as the description of the API and answers do."""

from datetime import date, timedelta

from litestar.routes import HTTPRoute

from muster_server.systems.http.deprecated import DAYS_MIN, Deprecated, Marks, headers
from tests.documents import ROOT, cells, spans
from tests.http.conftest import Make

PAGE = (ROOT / "docs" / "api-changes.md").read_text()
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
