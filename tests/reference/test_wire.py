"""The golden vectors of the wire, read by the tables of `docs/protocol.md`; `core/rooms/tests/vectors.rs` reads the same."""

import json
import re
from typing import Any, Final

import pytest

from tests.documents import ROOT, cells
from tests.reference import wire

VECTORS: Final = json.loads((ROOT / "tests" / "vectors" / "wire.json").read_text())

Case = dict[str, Any]


def text(value: Any) -> Any:
    """As the vectors write it: numbers as decimal, bytes as hex strings."""
    if isinstance(value, dict):
        return {name: text(each) for name, each in value.items()}
    if isinstance(value, list):
        return [text(each) for each in value]
    return value.hex() if isinstance(value, bytes) else str(value)


def cases(what: str) -> pytest.MarkDecorator:
    """One test for each vector."""
    return pytest.mark.parametrize("case", VECTORS[what], ids=lambda case: f"{case['kind']}-{case['name']}")


def named(layout: wire.Layout) -> tuple[str, str]:
    """As a vector is headed."""
    return str(layout.kind), layout.name


@cases("frames")
def test_a_frame_reads_as_the_page_says(case: Case) -> None:
    ((layout, fields),) = wire.frames(bytes.fromhex(case["bytes"]))
    assert (named(layout), text(fields)) == ((case["kind"], case["name"]), case["fields"])


@cases("records")
def test_a_record_reads_as_the_page_says(case: Case) -> None:
    layout, fields = wire.record(bytes.fromhex(case["bytes"]))
    assert (named(layout), text(fields)) == ((case["kind"], case["name"]), case["fields"])


@cases("datagrams")
def test_a_datagram_reads_as_the_page_says(case: Case) -> None:
    layout, header, fields = wire.datagram(bytes.fromhex(case["bytes"]))
    wanted = (case["kind"], case["name"]), case["header"], case["fields"]
    assert (named(layout), text(header), text(fields)) == wanted


def most(what: str, name: str) -> int:
    """The longest list of this name in the vectors."""
    return max(len(case["fields"].get(name, ())) for case in VECTORS[what])


def test_the_bounds_of_messages_are_those_of_the_code() -> None:
    limits = (ROOT / "core" / "rooms" / "src" / "limits.rs").read_text()
    units = {"KIB": 1_024, "MIB": 1_024 * 1_024}
    rows = list(cells(wire.PAGE, "what", "bytes at most", "constant"))
    assert len(rows) == 3
    for _, bytes_at_most, constant in rows:
        found = re.search(rf"^pub const {constant.strip('`')}: usize = (\d+) \* (\w+);$", limits, re.MULTILINE)
        assert found is not None, constant
        assert int(bytes_at_most.replace(",", "")) == int(found[1]) * units[found[2]]


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("records", "positions"),
        ("records", "start"),
        ("records", "gaps"),
        ("frames", "resume"),
        ("frames", "ranges"),
        ("frames", "missing"),
        ("frames", "runs"),
    ],
)
def test_the_vectors_have_as_many_of_each_as_may_be(what: str, name: str) -> None:
    assert most(what, name) == wire.BOUNDS[name]


@cases("records")
def test_a_record_with_more_than_may_be_is_refused(case: Case) -> None:
    if case["name"] not in {"join", "joined"}:
        return
    fields = case["fields"]
    before = 6 + 1 + len(fields["name"]) // 2 if case["name"] == "join" else 17
    data = bytearray.fromhex(case["bytes"])
    assert data[before] == len(fields.get("positions", fields.get("start")))
    data[before] = 9
    with pytest.raises(AssertionError, match=r"more (positions|start) than may be"):
        wire.record(bytes(data) + bytes(1_000))


def test_frames_follow_each_other_until_padding() -> None:
    frames = VECTORS["frames"]
    together = b"".join(bytes.fromhex(case["bytes"]) for case in frames) + bytes(9)
    assert [text(fields) for _, fields in wire.frames(together)] == [case["fields"] for case in frames]


@pytest.mark.parametrize(
    ("what", "tables"), [("frames", wire.FRAMES), ("records", wire.RECORDS), ("datagrams", wire.DATAGRAMS)]
)
def test_every_row_of_the_page_has_a_vector(what: str, tables: dict[int, wire.Layout]) -> None:
    assert {(case["kind"], case["name"]) for case in VECTORS[what]} == {named(layout) for layout in tables.values()}


def test_the_header_stands_at_the_bytes_that_the_page_names() -> None:
    at = 0
    for part, row in zip(wire.HEADER, cells(wire.PAGE, "bytes", "header", ""), strict=True):
        assert isinstance(part, wire.Field)
        assert isinstance(part.size, int)
        assert row[0] == f"{at}..{at + part.size}"
        at += part.size
    assert at == 28
