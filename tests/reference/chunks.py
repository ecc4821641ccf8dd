"""Slow, obvious model of `core/rooms/src/chunks.rs`: the chunks of each unfinished message in a list.

Not modelled: the bounds of session and process, as they count the allocator's bytes.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

FIRST = 1
LAST = 2
MESSAGE_BYTES_MAX = 64 * 1024
AGE_MAX_US = 5_000_000

Outcome = Literal["complete", "partial", "no_first", "skipped", "repeated", "too_long", "too_old"]


def split(data: bytes, chunk_max: int) -> list[tuple[int, bytes]]:
    """(flags, bytes) of every chunk; an empty message is one empty chunk."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise ValueError("message too long")
    starts = range(0, max(1, len(data)), chunk_max)
    last = len(starts) - 1
    return [
        ((FIRST if at == 0 else 0) | (LAST if at == last else 0), data[start : start + chunk_max])
        for at, start in enumerate(starts)
    ]


@dataclass
class Unfinished:
    first_seq: int
    started_us: int
    chunks: list[bytes] = field(default_factory=list)

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.chunks)


class Assembler:
    """At most one unfinished message per publisher (and room: sequences are counted per pair)."""

    def __init__(self) -> None:
        self.unfinished: dict[Hashable, Unfinished] = {}

    def push(
        self, now_us: int, publisher: Hashable, seq: int, flags: int, data: bytes
    ) -> tuple[Outcome, bytes | None, tuple[int, int] | None]:
        """The fate of the chunk, the message if complete, and (first sequence, count) of a message given up for it."""
        current = self.unfinished.get(publisher)
        if current is not None and current.first_seq <= seq < current.next_seq:
            return "repeated", None, None
        lost = None
        if flags & FIRST:
            lost = self.abandon(publisher)
            current = Unfinished(seq, now_us)
        elif current is None:
            return "no_first", None, None
        elif now_us - current.started_us > AGE_MAX_US:
            return "too_old", None, self.abandon(publisher)
        elif seq != current.next_seq:
            return "skipped", None, self.abandon(publisher)
        if sum(map(len, current.chunks)) + len(data) > MESSAGE_BYTES_MAX:
            return "too_long", None, self.abandon(publisher) or lost
        current.chunks.append(data)
        if flags & LAST:
            self.unfinished.pop(publisher, None)
            return "complete", b"".join(current.chunks), lost
        self.unfinished[publisher] = current
        return "partial", None, lost

    def abandon(self, publisher: Hashable) -> tuple[int, int] | None:
        lost = self.unfinished.pop(publisher, None)
        return None if lost is None else (lost.first_seq, len(lost.chunks))

    def expire(self, now_us: int) -> list[tuple[Hashable, tuple[int, int]]]:
        """Publishers whose message was given up for its age, with (first sequence, count)."""
        old = [key for key, message in self.unfinished.items() if now_us - message.started_us > AGE_MAX_US]
        return [(key, lost) for key in old if (lost := self.abandon(key)) is not None]
