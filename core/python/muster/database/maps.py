"""Which shard has an id: a map of ranges, or of buckets of hashed ids.

A part begins at a point and ends where the next one begins. By range the point of an id is the id, by hash its bucket.
A part with several shards spreads its ids over them by bucket, as the tail of a range that takes all new ids. A held part
moves to other shards: nothing is written there. A map is immutable. It must not know a database.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import BigInteger, ColumnElement, and_, cast, false, literal, or_

from ..errors import Invalid

BUCKETS: Final = 1_024
PARTS_MAX: Final = 1_024
SHARDS_MAX: Final = 256
NAME_CHARS_MAX: Final = 64
MAP_BYTES_MAX: Final = 60_000
"""A MariaDB `TEXT` has 65,535."""
ID_MAX: Final = (1 << 63) - 1
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}")
_PRIME: Final = (1 << 31) - 1
_FACTOR: Final = 1_103_515_245
# The product of both is below 2^62, so each database computes it in 64 bits.

Kind = Literal["range", "hash"]


@dataclass(frozen=True, slots=True)
class Part:
    """From `begin` to the next part. `held`: nothing is written here now."""

    begin: int
    shards: tuple[str, ...]
    held: bool = False


class ShardMap:
    """An immutable map of ids from 0 to 2^63 - 1."""

    def __init__(self, kind: Kind, parts: Iterable[Part | tuple[int, Sequence[str] | str]], version: int = 1) -> None:
        """`parts`: the first begins at 0, as `[(0, "a"), (1_000_000, ["b", "c"])]`. Raises `Invalid`."""
        if kind not in {"range", "hash"}:
            raise Invalid(f"invalid kind {kind!r:.80} of a map (expected 'range' or 'hash')")
        self.kind, self.version = kind, version
        self.parts = _merged(_part(each) for each in parts)
        self.begins = [part.begin for part in self.parts]
        limit = ID_MAX if kind == "range" else BUCKETS - 1
        if not self.parts or self.begins[0] != 0:
            raise Invalid("the first part of a map must begin at 0")
        if any(after <= before for before, after in zip(self.begins, self.begins[1:], strict=False)):
            raise Invalid("the parts of a map must have different beginnings, in ascending order")
        if self.begins[-1] > limit or version < 1:
            raise Invalid(f"a part of a map by {kind} begins at {limit} at most")
        self.shards = tuple(sorted({shard for part in self.parts for shard in part.shards}))
        if len(self.parts) > PARTS_MAX or len(self.shards) > SHARDS_MAX or len(self.encoded()) > MAP_BYTES_MAX:
            raise Invalid(f"the map is too large (limit {PARTS_MAX} parts, {SHARDS_MAX} shards, {MAP_BYTES_MAX} bytes)")

    def part(self, id: int) -> Part:
        """Return the part of an id. Raises `Invalid`."""
        if not 0 <= id <= ID_MAX:
            raise Invalid(f"invalid id {id} (expected 0 to 2^63 - 1)")
        return self.parts[bisect_right(self.begins, id if self.kind == "range" else bucket(id)) - 1]

    def shard(self, id: int) -> str:
        """Return the name of the shard that has this id. Raises `Invalid`."""
        shards = self.part(id).shards
        return shards[0] if len(shards) == 1 else shards[bucket(id) % len(shards)]

    def owned(self, column: Any, shard: str) -> ColumnElement[bool]:
        """Return the condition that a shard has the id of a row: an index on the column serves maps by range."""
        number = cast(column, BigInteger)
        hashed = number % _big(_PRIME) * _big(_FACTOR) % _big(_PRIME) % _big(BUCKETS)
        point: ColumnElement[Any] = column if self.kind == "range" else hashed
        found = [
            and_(*_between(point, part.begin, end), *_spread(hashed, part, shard))
            for part, end in zip(self.parts, [*self.begins[1:], None], strict=True)
            if shard in part.shards
        ]
        return or_(*found) if found else false()

    def held(self, to: "ShardMap") -> "ShardMap":
        """Return this map with those parts held that differ in another one. Raises `Invalid`."""
        if to.kind != self.kind:
            raise Invalid(f"a map by {self.kind} cannot become a map by {to.kind}")
        begins = sorted({*self.begins, *to.begins})
        both = [(begin, self._at(begin), to._at(begin)) for begin in begins]
        parts = [Part(begin, mine.shards, mine.shards != other.shards) for begin, mine, other in both]
        return ShardMap(self.kind, parts, self.version + 1)

    def _at(self, point: int) -> Part:
        return self.parts[bisect_right(self.begins, point) - 1]

    def encoded(self) -> str:
        """Return the map as JSON, without its version."""
        parts = [[part.begin, list(part.shards), *([True] if part.held else [])] for part in self.parts]
        return json.dumps({"kind": self.kind, "parts": parts}, separators=(",", ":"))

    @classmethod
    def decoded(cls, text: str, version: int) -> "ShardMap":
        """Return the map of such a text. Raises `Invalid`."""
        try:
            said = json.loads(text)
            parts = [Part(int(begin), tuple(map(str, shards)), bool(held)) for begin, shards, *held in said["parts"]]
            return cls(said["kind"], parts, version)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Invalid(f"the stored map is damaged: {error}; store a whole one with create") from None


def bucket(id: int) -> int:
    """Return the bucket of an id, as SQL computes it, too."""
    return id % _PRIME * _FACTOR % _PRIME % BUCKETS


def _part(given: Part | tuple[int, Sequence[str] | str]) -> Part:
    if isinstance(given, Part):
        part = given
    else:
        begin, shards = given
        part = Part(begin, (shards,) if isinstance(shards, str) else tuple(shards))
    if not part.shards or len(set(part.shards)) != len(part.shards):
        raise Invalid(f"the part from {part.begin} on needs one shard or more, each once")
    for name in part.shards:
        if not _NAME.fullmatch(name):
            raise Invalid(
                f"invalid name {name!r:.80} of a shard (expected 1 to {NAME_CHARS_MAX} letters, digits, '.', '-' or '_')"
            )
    return part


def _merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    found: list[Part] = []
    for part in parts:
        if not found or (found[-1].shards, found[-1].held) != (part.shards, part.held) or part.begin <= found[-1].begin:
            found.append(part)
    return tuple(found)


def _between(point: ColumnElement[Any], begin: int, end: int | None) -> list[ColumnElement[bool]]:
    """Without conditions, all points."""
    found = [] if begin == 0 and end is not None else [point >= _big(begin)]
    return found if end is None else [*found, point < _big(end)]


def _spread(hashed: ColumnElement[Any], part: Part, shard: str) -> list[ColumnElement[bool]]:
    if len(part.shards) == 1:
        return []
    return [hashed % _big(len(part.shards)) == _big(part.shards.index(shard))]


def _big(number: int) -> ColumnElement[int]:
    return literal(number, BigInteger)
