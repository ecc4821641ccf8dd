"""Decodes the wire by the tables of `docs/protocol.md`. It reads what the page says, and knows only the notation and
the one rule that no table can hold: when a block names a publisher."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.documents import ROOT, cells

PAGE: Final = (ROOT / "docs" / "protocol.md").read_text()
TOKEN: Final = re.compile(
    r"(?P<count>\w+|\*) \N{MULTIPLICATION SIGN} (?P<list>\w+) \(|(?P<end>\))|(?P<name>\w+)(?: (?P<type>u\d+|b\[\w+\]))?"
)
GROUPS: Final = {row[0]: row[1].strip("`") for row in cells(PAGE, "group", "fields")}

BOUNDS: Final = {name.strip("` "): int(row[1]) for row in cells(PAGE, "items", "at most") for name in row[0].split(",")}

Fields = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """One number (`size` bytes) or byte string (`size` bytes, or as many as a field says)."""

    name: str
    kind: str
    size: int | str


@dataclass(frozen=True)
class Repeated:
    """A group as often as the field `count` says, or to the end (`*`)."""

    name: str
    count: str
    items: "tuple[Part, ...]"


Part = Field | Repeated


@dataclass(frozen=True)
class Layout:
    """One row: a kind, its name, and what its body holds."""

    kind: int
    name: str
    parts: tuple[Part, ...]


def parse(text: str) -> tuple[Part, ...]:
    """Read the notation of a body."""
    return _parse(TOKEN.finditer(text))


def layouts(what: str, *columns: str) -> dict[int, Layout]:
    """The rows of the table whose second column is `what`, by kind."""
    found = (Layout(int(row[0]), row[1], parse(_code(row[-1]))) for row in cells(PAGE, "kind", what, *columns))
    return {layout.kind: layout for layout in found}


def frames(data: bytes) -> Iterator[tuple[Layout, Fields]]:
    """The frames of an opened datagram."""
    while data and data[0]:
        length = int.from_bytes(data[2:4], "little")
        assert len(data) >= 4 + length, "a frame is cut short"
        yield FRAMES[data[0]], decode(FRAMES[data[0]].parts, data[4 : 4 + length])
        data = data[4 + length :]


def record(data: bytes) -> tuple[Layout, Fields]:
    """One record of a log."""
    return RECORDS[data[0]], decode(RECORDS[data[0]].parts, data[1:])


def datagram(data: bytes) -> tuple[Layout, Fields, Fields]:
    """Header and clear body of a datagram; of a sealed one only the header."""
    clear = decode(HEADER, data[:28])
    magic, kind = clear.pop("magic"), clear.pop("kind")
    assert (magic, kind >> 4) == (0x4D, 1)
    layout = DATAGRAMS[kind & 15]
    body = data[28:]
    if layout.name == "hello":
        fields, rest = _decode(layout.parts, body)
        assert (len(data), rest.strip(b"\0")) == (1_200, b"")
        return layout, clear, fields
    return layout, clear, decode(layout.parts, body)


def decode(parts: tuple[Part, ...], data: bytes) -> Fields:
    """Read a body to its last byte; counts and lengths are left out."""
    fields, rest = _decode(parts, data)
    assert not rest, f"{len(rest)} bytes too many"
    return fields


def _code(cell: str) -> str:
    return cell.split("`")[1] if "`" in cell else ""


def _parse(tokens: Iterator[re.Match[str]]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for token in tokens:
        name, kind = token["name"], token["type"]
        if token["end"]:
            break
        if token["list"]:
            parts.append(Repeated(token["list"], token["count"], _parse(tokens)))
        elif kind is None:
            parts += [Field("named", "named", 0)] if name == "named" else parse(GROUPS[name])
        elif kind.startswith("u"):
            parts.append(Field(name, "number", int(kind[1:]) // 8))
        else:
            size = kind[2:-1]
            parts.append(Field(name, "bytes", int(size) if size.isdecimal() else size))
    return tuple(parts)


def _decode(parts: tuple[Part, ...], data: bytes, named: int = 0) -> tuple[Fields, bytes]:
    fields: Fields = {}
    counts: set[str] = set()
    for part in parts:
        if isinstance(part, Repeated):
            fields[part.name], data = _items(part, fields, data)
            counts.add(part.count)
        elif part.kind == "named":
            if fields["publisher"] == named:
                more, data = _decode(parse(GROUPS["named"]), data)
                fields |= more
            assert fields["publisher"] <= named, "a publisher that was not named"
        else:
            size = part.size if isinstance(part.size, int) else fields[part.size]
            assert len(data) >= size, f"{part.name} is cut short"
            value, data = data[:size], data[size:]
            fields[part.name] = value if part.kind == "bytes" else int.from_bytes(value, "little")
            if isinstance(part.size, str):
                counts.add(part.size)
    return {name: value for name, value in fields.items() if name not in counts}, data


def _items(part: Repeated, fields: Fields, data: bytes) -> tuple[list[Fields], bytes]:
    items: list[Fields] = []
    named = 0
    if part.name in BOUNDS and part.count != "*":
        assert fields[part.count] <= BOUNDS[part.name], f"more {part.name} than may be"
    while len(items) < fields[part.count] if part.count != "*" else data:
        item, data = _decode(part.items, data, named)
        named += "sequence" in item
        items.append(item)
    return items, data


FRAMES: Final = layouts("frame", "from → to", "wants", "body")
RECORDS: Final = layouts("record", "from → to", "body")
DATAGRAMS: Final = layouts("datagram", "body")
HEADER: Final = parse(", ".join(_code(row[1]) for row in cells(PAGE, "bytes", "header", "")))
