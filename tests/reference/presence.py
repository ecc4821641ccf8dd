"""Slow, obvious model of `core/presence`: the bytes of its frames, and a writer that keeps sets and dicts.

Versions are numbers on a circle of 2^64; of two versions the later one is less than 2^63 ahead.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

WINDOW: Final = 4_096
CIRCLE: Final = 1 << 64

Verdict = Literal["duplicate", "fresh", "beyond"]
Fields = dict[str, Any]
Place = tuple[int, str, int]
"""User, device and gateway."""


def after(one: int, other: int) -> bool:
    """Whether version `one` is later than `other`."""
    return 0 < (one - other) % CIRCLE < CIRCLE // 2


# ---- What a writer knows of one gateway ----------------------------------------------------------------------------


@dataclass
class Gaps:
    """`core/presence/src/tracker.rs`: every version since `start` that was applied, as its distance from the start."""

    start: int
    applied: set[int] = field(default_factory=set)
    highest: int = 0

    @property
    def missing(self) -> list[int]:
        return [number for number in range(1, self.highest + 1) if number not in self.applied]

    @property
    def complete(self) -> int:
        return min(self.missing, default=self.highest + 1) - 1

    def take(self, first: int, last: int) -> Verdict:
        near, far = (first - self.start) % CIRCLE, (last - self.start) % CIRCLE
        if far > self.highest and far - self.complete > WINDOW:
            return "beyond"
        fresh = set(range(near, far + 1)) - self.applied
        self.applied |= fresh
        self.highest = max(self.highest, far)
        return "fresh" if fresh else "duplicate"

    def expect(self, newest: int) -> bool:
        """The gateway's newest version, of which nothing else came; false: beyond the window."""
        far = (newest - self.start) % CIRCLE
        if far > self.highest and far - self.complete > WINDOW:
            return False
        self.highest = max(self.highest, far)
        return True


@dataclass
class Writer:
    """`core/presence/src/places.rs` without grace: for each place the newest event, for each gateway its life."""

    newest: dict[Place, tuple[int, int, int, bool]] = field(default_factory=dict)
    """Epoch, version, index, and whether the device is online by that event."""

    def apply(self, ap: int, epoch: int, version: int, index: int, user: int, device: str, online: bool) -> bool:
        """Whether the event changed the place: only a greater (epoch, version, index) does."""
        place = (user, device, ap)
        known = self.newest.get(place)
        if known is not None:
            same_epoch = epoch == known[0]
            same_version = same_epoch and version == known[1]
            newer = index > known[2] if same_version else after(version, known[1]) if same_epoch else epoch > known[0]
            if not newer:
                return False
        self.newest[place] = (epoch, version, index, online)
        return True

    def replace(self, ap: int, epoch: int, version: int, entries: Iterable[tuple[int, str, int, int]]) -> None:
        """The devices of a gateway as of `version` are these and no others, each with its event's version and index."""
        self.newest = {place: known for place, known in self.newest.items() if place[2] != ap}
        for user, device, of, index in entries:
            assert not after(of, version), "a full state has no event that comes after it"
            self.newest[user, device, ap] = (epoch, of, index, True)

    @property
    def online(self) -> set[Place]:
        return {place for place, known in self.newest.items() if known[3]}


# ---- What a reader tells -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """A device in a user's record."""

    gateway: int
    epoch: int
    version: int
    index: int
    state: int
    """0: online."""
    at_ms: int
    device: str


def record(held: Sequence[Held]) -> bytes:
    """`core/presence/src/bucket.rs`: a user's record in the store."""
    parts = [b"\x01"] if held else []
    for each in held:
        parts += [varint(each.gateway), varint(each.epoch), varint(each.version), varint(each.index)]
        parts += [bytes([each.state]), varint(each.at_ms), bytes([len(each.device)]), each.device.encode()]
    return b"".join(parts)


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low]) if not rest else bytes([low | 0x80]) + varint(rest)


LOST: Final = 2
"""The state of a device that went with its gateway."""


def found(
    site: int, known: Sequence[tuple[int, Sequence[Held] | int]], shards: int, times: Sequence[tuple[int, int]]
) -> list[Any]:
    """`core/presence/src/pack.rs`: what a site answers of users.

    `known`: each with its devices, or the second at which it was last seen, 0 for never. `times`: of each shard, the store's
    clock and the keepalive in ms.
    """
    told = []
    for user, value in known:
        now_ms, alive_ms = times[user % shards]
        held = [] if isinstance(value, int) else value
        online = [[each.device, each.gateway, each.at_ms] for each in held if each.state == 0]
        if online:
            seen_ms = alive_ms
        elif isinstance(value, int):
            seen_ms = value * 1_000
        else:  # the time at which a gateway was lost is in no event
            seen_ms = max((now_ms if each.state == LOST else min(each.at_ms, now_ms) for each in held), default=0)
        told.append([user, online, seen_ms or None])
    return [site, told]


# ---- Bytes ---------------------------------------------------------------------------------------------------------

HEADS: Final[dict[int, tuple[str, tuple[tuple[str, int], ...], str | None]]] = {
    24: ("report", (("ap", 4), ("epoch", 4), ("version", 8)), "events"),
    25: ("share", (("map", 4), ("of", 2), ("shard", 2), ("ap", 4), ("epoch", 4), ("version", 8)), "events"),
    26: ("empty", (("map", 4), ("of", 2), ("shard", 2), ("ap", 4), ("epoch", 4), ("first", 8), ("last", 8)), None),
    27: ("beat", (("ap", 4), ("epoch", 4), ("newest", 8)), None),
    28: ("ask", (("transaction", 8), ("of", 2), ("shard", 2), ("ap", 4), ("epoch", 4)), "ranges"),
    29: ("too_old", (("transaction", 8), ("ap", 4), ("epoch", 4), ("oldest", 8), ("newest", 8)), None),
    30: ("full_ask", (("transaction", 8), ("of", 2), ("shard", 2), ("ap", 4)), "ranges"),
    31: (
        "chunk",
        (("transaction", 8), ("ap", 4), ("epoch", 4), ("version", 8), ("index", 4), ("count", 4)),
        "entries",
    ),
    32: ("wait", (("transaction", 8), ("ap", 4), ("epoch", 4), ("wait_ms", 4)), None),
    33: ("supersede", (("ap", 4), ("epoch", 4), ("user", 8), ("device", 0), ("version", 8), ("index", 2)), None),
    34: (
        "unicast",
        (
            ("server", 4),
            ("epoch", 4),
            ("sequence", 8),
            ("after", 8),
            ("user", 8),
            ("device", 0),
            ("expires_ms", 4),
        ),
        "body",
    ),
    35: ("unicast_answer", (("server", 4), ("epoch", 4), ("sequence", 8), ("ap", 4)), "outcomes"),
    36: ("here", (("site", 2), ("of", 2), ("shard", 2)), None),
    37: (
        "end",
        (
            ("server", 4),
            ("epoch", 4),
            ("sequence", 8),
            ("after", 8),
            ("user", 8),
            ("device", 0),
            ("expires_ms", 4),
        ),
        "body",
    ),
}
"""By kind: name, fields with their bytes (0: one byte of length and a name), and the list that fills the rest."""

ITEMS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "events": (("index", 2), ("user", 8), ("device", 0), ("state", 1), ("at_ms", 8)),
    "entries": (("user", 8), ("device", 0), ("version", 8), ("index", 2), ("since_ms", 8)),
    "ranges": (("first", 8), ("more", 4)),
    "outcomes": (("device", 0), ("outcome", 1)),
}


def encode(kind: int, fields: Fields) -> bytes:
    """The frame: kind, flags, length, body."""
    _, head, rest = HEADS[kind]
    body = _write(head, fields)
    if rest == "body":
        body += bytes.fromhex(fields["body"])
    elif rest is not None:
        body += b"".join(_write(ITEMS[rest], item) for item in fields[rest])
    return bytes([kind, 0]) + len(body).to_bytes(2, "little") + body


def decode(frame: bytes) -> tuple[str, Fields]:
    """The name and the fields of one frame."""
    kind, size = frame[0], int.from_bytes(frame[2:4], "little")
    assert size == len(frame) - 4, "one whole frame"
    name, head, rest = HEADS[kind]
    at = 4
    fields, at = _read(head, frame, at)
    if rest == "body":
        fields["body"] = frame[at:].hex()
    elif rest is not None:
        fields[rest] = list(_items(rest, frame, at))
    else:
        assert at == len(frame), "nothing is left"
    return name, fields


def _items(rest: str, frame: bytes, at: int) -> Iterator[Fields]:
    while at < len(frame):
        item, at = _read(ITEMS[rest], frame, at)
        yield item


def _write(layout: tuple[tuple[str, int], ...], fields: Fields) -> bytes:
    parts = []
    for name, size in layout:
        value = fields[name]
        parts.append(int(value).to_bytes(size, "little") if size else bytes([len(value)]) + value.encode())
    return b"".join(parts)


def _read(layout: tuple[tuple[str, int], ...], frame: bytes, at: int) -> tuple[Fields, int]:
    fields: Fields = {}
    for name, size in layout:
        if size:
            fields[name], at = int.from_bytes(frame[at : at + size], "little"), at + size
        else:
            end = at + 1 + frame[at]
            fields[name], at = frame[at + 1 : end].decode(), end
        assert at <= len(frame), f"{name} is cut"
    return fields, at
