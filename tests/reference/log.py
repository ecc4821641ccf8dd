"""Slow, obvious model of `core/transport/src/log.rs`: lists of records, one entry each, looked through every time."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

RECORD_BYTES_MAX = 1_100
FLIGHT_BYTES_MAX = 32 * 1024
FLIGHT_RECORDS_MAX = 1_024
RECORD_COST = 32
BACKOFF_MAX_US = 1_000_000


class Full(Exception):
    """What waits for its acknowledgement already fills the bound."""


class Malformed(Exception):
    """The frame body breaks its encoding."""


@dataclass
class Record:
    offset: int
    data: bytes
    sent_us: int | None = None
    repeats: int = 0

    def due_us(self, rto_us: int) -> int:
        assert self.sent_us is not None
        return self.sent_us + min(rto_us << min(self.repeats, 20), max(BACKOFF_MAX_US, rto_us))


class LogSender:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.last = 0
        self.waiting: list[Record] = []

    @property
    def pending_bytes(self) -> int:
        return sum(len(record.data) + RECORD_COST for record in self.waiting)

    @property
    def acknowledged(self) -> int:
        return self.last - len(self.waiting)

    def push(self, data: bytes) -> int:
        if len(data) > RECORD_BYTES_MAX:
            raise ValueError("record too long")
        if self.pending_bytes + len(data) + RECORD_COST > self.bytes_max:
            raise Full
        self.last += 1
        self.waiting.append(Record(self.last, data))
        return self.last

    def next_frame(self, now_us: int, rto_us: int, size: int) -> bytes | None:
        """The next frame body of due records in at most `size` bytes."""
        frame: list[Record] = []
        used = 10
        for record in self.waiting:
            if not self._is_due(record, now_us, rto_us):
                if frame:
                    break
                continue
            if used + 2 + len(record.data) > size:
                break
            used += 2 + len(record.data)
            record.repeats += record.sent_us is not None
            record.sent_us = now_us
            frame.append(record)
        if not frame:
            return None
        body = struct.pack("<QH", frame[0].offset, len(frame))
        return body + b"".join(struct.pack("<H", len(record.data)) + record.data for record in frame)

    def acknowledge(self, upto: int) -> None:
        while self.waiting and self.waiting[0].offset <= upto and self.waiting[0].sent_us is not None:
            self.waiting.pop(0)

    def deadline_us(self, rto_us: int) -> int | None:
        """When the next frame is due: 0 for a record never sent that may go, None when idle."""
        unsent = [record for record in self.waiting if record.sent_us is None]
        if unsent and self._fits_in_flight(unsent[0]):
            return 0
        return min((record.due_us(rto_us) for record in self.waiting if record.sent_us is not None), default=None)

    def _is_due(self, record: Record, now_us: int, rto_us: int) -> bool:
        if record.sent_us is None:
            return self._fits_in_flight(record)
        return record.due_us(rto_us) <= now_us

    def _fits_in_flight(self, record: Record) -> bool:
        flight = [other for other in self.waiting if other.sent_us is not None]
        size = sum(len(other.data) + 2 for other in [*flight, record])
        in_order = all(other.sent_us is not None for other in self.waiting if other.offset < record.offset)
        return in_order and len(flight) < FLIGHT_RECORDS_MAX and size <= FLIGHT_BYTES_MAX


class LogReceiver:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.next_expected = 1
        self.held: dict[int, bytes] = {}
        self.ack_due = False

    @property
    def held_bytes(self) -> int:
        return sum(len(data) + RECORD_COST for data in self.held.values())

    def receive(self, body: bytes, deliver: Callable[[bytes], None]) -> None:
        records = parse(body)
        self.ack_due = True
        for offset, data in records:
            if offset == self.next_expected:
                deliver(data)
                self.next_expected += 1
                while self.next_expected in self.held:
                    deliver(self.held.pop(self.next_expected))
                    self.next_expected += 1
            elif offset > self.next_expected and self._has_space(data):
                self.held.setdefault(offset, data)

    def take_ack(self) -> int:
        self.ack_due = False
        return self.next_expected - 1

    def _has_space(self, data: bytes) -> bool:
        return self.held_bytes + len(data) + RECORD_COST <= self.bytes_max


def parse(body: bytes) -> list[tuple[int, bytes]]:
    """The records of a frame body with their offsets."""
    if len(body) < 10:
        raise Malformed
    first, count = struct.unpack_from("<QH", body)
    if first == 0 or count == 0 or first + count >= 1 << 64:
        raise Malformed
    rest = body[10:]
    records = []
    for offset in range(first, first + count):
        if len(rest) < 2:
            raise Malformed
        (size,) = struct.unpack_from("<H", rest)
        if size > RECORD_BYTES_MAX or len(rest) < 2 + size:
            raise Malformed
        records.append((offset, rest[2 : 2 + size]))
        rest = rest[2 + size :]
    if rest:
        raise Malformed
    return records
