"""The digest of the registry: all its entries in a few nodes, and the latest changes, by version. Pure encoding.

One process writes it (`keeper.py`), the others read it in place of each entry (`readings.py`). The digest of a version
is its *base* and the *changes* since, each in parts that fit a node. No I/O, no clock, and no meaning of the entries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from muster_server.control.registry.tree import DATA_MAX, Entry

T = TypeVar("T")
FOLDER: Final = "digest"
"""The folder of the digest, below the root."""
GONE: Final = -1
"""The version of an entry that a change removes."""
PART_MAX: Final = DATA_MAX - (4 << 10)
"""Bytes of entries in a part; the rest is for the encoding."""
VALUE_MAX: Final = 8 << 10
"""A longer value is cut to this length. Every reader refuses it anyway: `places.VALUE_MAX` is half of that."""
INLINE_MAX: Final = 4 << 10
"""A change of at most this many bytes is in the head too: one read for each reader."""
CHANGES_MAX: Final = 64
"""Limit of changes that are kept: a reader that is further behind reads the base again."""
SINCE_MAX: Final = 16
"""Limit of changes since the base: more reads for a node that starts."""
BYTES_MAX: Final = 16 << 20
"""Limit of a digest, in bytes; a larger registry has none."""

Change = tuple[str, int, bytes]
"""Path below the root, version, data; without data and with the version `GONE` for a removed entry."""


class Broken(ValueError):
    """A node of the digest cannot be read."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The digest of one version, and the names of its parts."""

    series: int
    """A random number for each digest that does not continue an earlier one."""
    version: int
    base: tuple[int, str, int]
    """Version of the base, its name, and the number of its parts."""
    changes: tuple[tuple[str, int], ...]
    """Name and number of parts of each change, the last one to `version`, each before it to the version before."""
    inline: bytes = b""
    """The last change, if it is short."""


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """A sign of life: the digest was as the registry at some time after the beat before."""

    series: int
    version: int
    count: int
    keepers: int
    """The number of processes that can keep the digest."""


_CHANGES: Final = msgspec.msgpack.Decoder(list[Change])
_HEAD: Final = msgspec.msgpack.Decoder(Head)
_BEAT: Final = msgspec.msgpack.Decoder(Beat)


def encode(value: Head | Beat) -> bytes:
    """The value as bytes in the tree."""
    return msgspec.msgpack.encode(value)


def read_head(data: bytes) -> Head:
    """Decode a head. Raises `Broken`."""
    return _decoded(_HEAD, data)


def read_beat(data: bytes) -> Beat:
    """Decode a beat. Raises `Broken`."""
    return _decoded(_BEAT, data)


def difference(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[Change]:
    """The changes that make `after` of `before`."""
    made = [
        (path, entry.version, entry.data[:VALUE_MAX])
        for path, entry in after.items()
        if before.get(path) != (entry.data[:VALUE_MAX], entry.version)
    ]
    return made + [(path, GONE, b"") for path in before if path not in after]


def parts(changes: Sequence[Change]) -> list[bytes]:
    """Encode changes into parts; one empty part for none."""
    made: list[bytes] = []
    some: list[Change] = []
    size = 0
    for each in changes:
        more = len(each[0]) + len(each[2]) + 24
        if some and size + more > PART_MAX:
            made.append(msgspec.msgpack.encode(some))
            some, size = [], 0
        some.append(each)
        size += more
    return [*made, msgspec.msgpack.encode(some)]


def read_part(data: bytes) -> list[Change]:
    """Decode a part. Raises `Broken`."""
    return _decoded(_CHANGES, data)


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Broken(str(error)) from None


def part_names(name: str, count: int) -> list[str]:
    """The nodes of a base or a change."""
    return [f"{name}-{at}" for at in range(count)]


@dataclass
class Copy:
    """The entries of one version, as a reader or the keeper has them."""

    series: int = 0
    version: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)

    def lacks(self, head: Head) -> list[str] | None:
        """The changes of `head` to read, in their order; None: its base, and what follows it."""
        behind = head.version - self.version
        if self.series != head.series or behind > len(head.changes):
            return None
        return [part for name, count in head.changes[len(head.changes) - behind :] for part in part_names(name, count)]

    def apply(self, changes: Iterable[Change]) -> set[str]:
        """Apply changes, and return their paths."""
        changed = set[str]()
        for path, version, data in changes:
            changed.add(path)
            if version == GONE:
                self.entries.pop(path, None)
            else:
                self.entries[path] = Entry(data, version)
        return changed


def base_of(head: Head) -> list[str]:
    """The parts of the base, and of the changes since."""
    version, name, count = head.base
    since = head.version - version
    after = [part for name, count in head.changes[len(head.changes) - since :] for part in part_names(name, count)]
    return part_names(name, count) + (after if since else [])


@dataclass(frozen=True)
class Edition:
    """The nodes to write for a new version: first `made`, then `head`, then `dropped` may go."""

    head: Head
    made: Mapping[str, bytes]
    dropped: Sequence[str]


class Editor:
    """Makes each next version. `base_bytes` and `since_bytes` decide when the changes are worth a new base."""

    def __init__(self, head: Head | None, series: int, keeper: str) -> None:
        """Continue after `head`. `series`: of a new digest. `keeper` names this writer: its nodes are its own."""
        self.head = head
        self._series, self._keeper = series, keeper
        self._base_bytes = self._since_bytes = 0
        self._old_base: list[str] = []

    def edition(self, changes: Sequence[Change], entries: Mapping[str, Entry]) -> Edition:
        """The version after the present one: `changes` to `entries`."""
        head = self.head
        if head is None:
            return self._rebased(Head(self._series, 0, (0, "", 0), ()), {}, entries)
        encoded = parts(changes)
        version, name = head.version + 1, f"{head.version + 1}.{self._keeper}c"
        made = dict(zip(part_names(name, len(encoded)), encoded, strict=True))
        inline = encoded[0] if len(encoded) == 1 and len(encoded[0]) <= INLINE_MAX else b""
        kept = (*head.changes, (name, len(encoded)))
        after = Head(head.series, version, head.base, kept, inline)
        self._since_bytes += sum(map(len, encoded))
        since = version - head.base[0]
        if since > SINCE_MAX or self._since_bytes > max(DATA_MAX, self._base_bytes // 2):
            return self._rebased(after, made, entries)
        return self._bounded(after, made, [])

    def _rebased(self, head: Head, made: Mapping[str, bytes], entries: Mapping[str, Entry]) -> Edition:
        encoded = parts(difference({}, entries))
        self._base_bytes, self._since_bytes = sum(map(len, encoded)), 0
        name = f"{head.version}.{self._keeper}b"
        # The base before the last one stays for readers in the middle of it; the one before that goes.
        dropped, self._old_base = self._old_base, part_names(*head.base[1:])
        based = msgspec.structs.replace(head, base=(head.version, name, len(encoded)))
        return self._bounded(
            based, {**made, **dict(zip(part_names(name, len(encoded)), encoded, strict=True))}, dropped
        )

    def _bounded(self, head: Head, made: Mapping[str, bytes], dropped: Sequence[str]) -> Edition:
        old, kept = head.changes[:-CHANGES_MAX], head.changes[-CHANGES_MAX:]
        gone = [part for name, count in old for part in part_names(name, count)]
        return Edition(msgspec.structs.replace(head, changes=kept), made, [*dropped, *gone])

    def done(self, edition: Edition) -> None:
        """The edition is in the tree."""
        self.head = edition.head
