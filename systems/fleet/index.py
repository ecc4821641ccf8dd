"""The clients that are online, and the matches of a selector: a roaring bitmap for each value of each attribute.

Owns names, numbers and bitmaps. It must not know the source of updates, nor a clock. A client's record changes only for
a greater (epoch, version) (I-2): any order of the same updates, with duplicates or not, gives the same index. A record
stays when its client leaves, so that an old update cannot bring it back, and so that the client gets the same number
when it returns.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from muster_server.pyext import bits
from muster_server.systems.fleet.schema import NAME
from muster_server.systems.fleet.selector import ATTRIBUTES, VALUE_MAX, And, In, Not, Or, Selector

CLIENTS_MAX: Final = 1 << 26  # limit of numbers in a deck
VALUES_MAX: Final = 32  # limit of one client over all attributes: the bitmaps that change when it comes or goes

Attributes = Mapping[str, Sequence[str]]


class UpdateError(Exception):
    """An update is refused: an invalid name, attribute or value, or a full index. The text is one line."""


class Update(msgspec.Struct, frozen=True):
    """The complete record of a client at `version` of its `epoch`."""

    client: str
    epoch: int
    version: int
    attributes: dict[str, list[str]] | None
    """None: the client has left."""


class Snapshot(msgspec.Struct, frozen=True):
    """All records, and the numbers of their clients; `number` is the first free number."""

    records: list[tuple[int, Update]]
    next_number: int


class Index:
    def __init__(self) -> None:
        self.changes = 0
        """Changes whenever a selection may have changed."""
        self.refused = 0
        """Updates that were not newer than the known record."""
        self._records: dict[str, Update] = {}
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        self._online = BitMap()
        self._values: dict[tuple[str, str], BitMap] = {}

    @classmethod
    def restored(cls, snapshot: Snapshot) -> "Index":
        """Make the index of a snapshot. Raises `UpdateError`."""
        index = cls()
        index._names = [""] * snapshot.next_number
        for number, record in snapshot.records:
            if not 0 <= number < snapshot.next_number or index._names[number]:
                raise UpdateError(f"snapshot: number {number} of {record.client} is out of range or used twice")
            index._names[number] = record.client
            index._numbers[record.client] = number
            index.apply(record)
        index._free = [number for number, name in enumerate(index._names) if not name]
        return index

    def snapshot(self) -> Snapshot:
        return Snapshot([(self._numbers[name], record) for name, record in self._records.items()], len(self._names))

    def apply(self, update: Update) -> bool:
        """Apply an update if it is newer; returns whether it was. Raises `UpdateError`, and changes nothing then."""
        known = self._records.get(update.client)
        if known is not None and (update.epoch, update.version) <= (known.epoch, known.version):
            self.refused += 1
            return False
        _check(update)
        number = self._number(update.client)
        if known is not None and known.attributes is not None:
            self._unset(number, known.attributes)
        self._records[update.client] = update
        if update.attributes is not None:
            self._online.add(number)
            for key in _values(update.attributes):
                self._values.setdefault(key, BitMap()).add(number)
        self.changes += 1
        return True

    def reset(self, name: str) -> None:
        """Let a client begin again with any epoch, under its number. Unknown names change nothing."""
        record = self._records.get(name)
        if record is None:
            return
        if record.attributes is not None:
            self._unset(self._numbers[name], record.attributes)
            self.changes += 1
        self._records[name] = Update(name, 0, 0, None)

    def forget(self, name: str) -> int:
        """Drop the record of a client that left permanently; returns its number, which another client may get from now
        on.
        Decks and weights must forget that number too. Raises `UpdateError` if the client is online or unknown.
        """
        record = self._records.get(name)
        if record is None or record.attributes is not None:
            raise UpdateError(f"client {name} is {'unknown' if record is None else 'online'} and cannot be forgotten")
        del self._records[name]
        number = self._numbers.pop(name)
        self._names[number] = ""
        self._free.append(number)
        return number

    def select(self, selector: Selector) -> BitMap:
        """The numbers of the online clients that match; the caller must not change the bitmap."""
        match selector:
            case In(attribute, values):
                found = [self._values.get((attribute, value), _EMPTY) for value in values]
                return found[0] if len(found) == 1 else BitMap.union(*found)
            case Not(part):
                return self._online - self.select(part)
            case Or(parts):
                return BitMap.union(*map(self.select, parts))
            case And(parts):
                wanted = sorted((self.select(part) for part in parts if not isinstance(part, Not)), key=len)
                unwanted = [self.select(part.part) for part in parts if isinstance(part, Not)]
                some = reduce(BitMap.__and__, wanted) if wanted else self._online
                return reduce(BitMap.__sub__, unwanted, some)

    def members(self, selector: Selector, out: NDArray[np.uint64]) -> None:
        """The same as bits. Raises ValueError if `out` is too small for the numbers assigned so far."""
        bits.read(self.select(selector).serialize(), out)

    @property
    def words(self) -> int:
        """The number of 64-bit words for all numbers assigned so far; at least 1."""
        return max(1, (len(self._names) + 63) // 64)

    @property
    def online(self) -> int:
        return len(self._online)

    def name(self, number: int) -> str:
        """The client of a number; empty if no client has it."""
        return self._names[number]

    def names(self) -> list[str]:
        """The names of all known clients, online or not."""
        return list(self._records)

    def number(self, name: str) -> int | None:
        return self._numbers.get(name)

    def record(self, name: str) -> Update | None:
        return self._records.get(name)

    def values(self, attribute: str, among: BitMap | None = None) -> dict[str, int]:
        """The number of online clients for each value, for completion and reports; `among`: only of these clients."""
        mine = ((value, found) for (name, value), found in self._values.items() if name == attribute)
        if among is None:
            return {value: len(found) for value, found in mine}
        counts = ((value, found.intersection_cardinality(among)) for value, found in mine)
        return {value: count for value, count in counts if count}

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is not None:
            return number
        if self._free:
            number = self._free.pop()
            self._names[number] = name
        elif len(self._names) < CLIENTS_MAX:
            number = len(self._names)
            self._names.append(name)
        else:
            raise UpdateError(f"no number is left for client {name} (limit {CLIENTS_MAX} known clients); forget some")
        self._numbers[name] = number
        return number

    def _unset(self, number: int, attributes: Attributes) -> None:
        self._online.discard(number)
        for key in _values(attributes):
            found = self._values[key]
            found.discard(number)
            if not found:
                del self._values[key]


_EMPTY: Final = BitMap()


def _values(attributes: Attributes) -> Iterator[tuple[str, str]]:
    for name, values in attributes.items():
        for value in dict.fromkeys(values):
            yield name, value


def _check(update: Update) -> None:
    if not NAME.fullmatch(update.client):
        raise UpdateError(f"invalid client name {update.client[:80]!r} (expected 1 to 64 letters, digits, '_' and '-')")
    if update.attributes is None:
        return
    count = 0
    for name, values in update.attributes.items():
        if name not in ATTRIBUTES:
            raise UpdateError(f"client {update.client}: unknown attribute {name[:80]!r}")
        for value in values:
            if not 0 < len(value) <= VALUE_MAX or '"' in value:
                raise UpdateError(f"client {update.client}: invalid value {value[:80]!r} of {name}")
        count += len(values)
    if count > VALUES_MAX:
        raise UpdateError(f"client {update.client}: too many attribute values: {count} (limit {VALUES_MAX})")
