"""Messages that programs lease, as they ask for them: topics by name, leases by a text, ends by verbs.

Owns the text of a lease, which nobody can make up, and when a message is due again. It must not know how requests come or
how the schedule is reached.
"""

import contextlib
import functools
import hashlib
import hmac
import random
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from muster.clock import now_ms
from muster_server import _engines
from muster_server.systems.messages.receiver import NoTopic, shown
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.shapes import (
    BATCH_MAX,
    LEASE_S_MAX,
    RESULT_BYTES_MAX,
    Fire,
    Lease,
    Leased,
    LeaseEnd,
    LeaseSaid,
    Result,
)
from muster_server.systems.messages.topics import Topic, Topics

NAME: Final = struct.Struct("<QIHIQ")
"""Number, claim, attempt, lateness in ms, begin of the lease in ms since 1970."""
MAC_BYTES: Final = 12
PADDING: Final = "=" * (-(NAME.size + MAC_BYTES) % 3)
"""A lease in Base64 leaves it out."""
TEXT_CHARS: Final = 4 * (NAME.size + MAC_BYTES + len(PADDING)) // 3 - len(PADDING)
NOT_LATE: Final = (1 << 32) - 1
"""The lateness of an attempt that is not the first."""
WHY_BYTES_MAX: Final = 2_048
DONE: Final = frozenset(b"drbl")
"""Bytes of `schedule.SAID` for results that count."""


class Center(Protocol):
    """The way to the leases. Raises `Unreachable`, and `Refusal`."""

    async def lease(self, topic: int, most: int, wait_s: float, lease_s: float) -> list[Fire]:
        """As `center.Center`."""

    async def end_leases(self, results: Sequence[Result]) -> bytes:
        """As `center.Center`."""

    async def extend_leases(self, asked: Sequence[tuple[int, int, int]]) -> list[tuple[str, int]]:
        """As `center.Center`."""


class _Name(NamedTuple):
    """The content of a lease's text."""

    number: int
    claim: int
    attempt: int
    lateness_ms: int
    began_ms: int


class Leasing:
    """The leases of one process."""

    def __init__(self, topics: Topics, center: Center, wall: Callable[[], int] = now_ms) -> None:
        self._topics, self._center, self._wall = topics, center, wall
        self._plans: dict[tuple[tuple[int, ...], int], _engines.RetryPlan] = {}

    async def lease(self, asked: Lease) -> list[Leased]:
        """Messages for a program, each under a lease. Raises `NoTopic`, `Refusal`, `Unreachable`."""
        topic = self._topic(asked.topic)
        fires = await self._center.lease(topic.number, asked.most, asked.wait_s, asked.lease_s)
        now = self._wall()
        found: list[Leased] = []
        for fire in fires:
            late = min(max(0, now - fire.due_at), NOT_LATE - 1) if fire.attempts == 1 else NOT_LATE
            name = self._text(topic, _Name(fire.number, fire.claim, fire.attempts, late, now))
            message = (fire.number, fire.claim, fire.due_at, None, fire.attempts, "firing", fire.until)
            found.append(Leased(name, fire.until, shown(topic.name, ("found", message, topic.number, fire.envelope))))
        return found

    async def end(self, topic_name: str, ends: Sequence[LeaseEnd]) -> list[LeaseSaid]:
        """End or extend leases; the outcomes are in the order of the request. Raises `NoTopic`, `Refusal`, `Unreachable`."""
        topic = self._topic(topic_name)
        if len(ends) > BATCH_MAX:
            raise Refusal("too_long", f"too many leases in a request (limit {BATCH_MAX})")
        said: list[LeaseSaid] = [LeaseSaid("lost")] * len(ends)
        results: list[tuple[int, Result]] = []
        longer: list[tuple[int, _Name, int]] = []
        now = self._wall()
        for place, end in enumerate(ends):
            name = self._name(topic, end.lease)
            if end.verb == "extend":
                if end.time_ms is None or not 1_000 <= end.time_ms <= LEASE_S_MAX * 1_000:
                    raise Refusal("bad_body", f"extend: invalid time (expected 1 to {LEASE_S_MAX:g} s from now)")
                longer.append((place, name, now + end.time_ms))
            else:
                results.append((place, self._result(topic, name, end, now)))
        if results:
            told = await self._center.end_leases([result for _, result in results])
            for (place, _), byte in zip(results, told, strict=True):
                said[place] = LeaseSaid("done" if byte in DONE else "busy" if byte == ord("n") else "lost")
        if longer:
            asked = [(name.number, name.claim, until) for _, name, until in longer]
            for (place, name, until), (outcome, claim) in zip(
                longer, await self._center.extend_leases(asked), strict=True
            ):
                renamed = self._text(topic, name._replace(claim=claim)) if outcome == "done" else ""
                said[place] = msgspec.convert((outcome, renamed, until if renamed else 0), LeaseSaid)
        return said

    def _result(self, topic: Topic, name: _Name, end: LeaseEnd, now: int) -> Result:
        """Raises `Refusal`."""
        late = -1 if name.lateness_ms == NOT_LATE else name.lateness_ms
        took = float(max(0, now - name.began_ms))
        if end.verb == "done":
            if len(end.text) > RESULT_BYTES_MAX:
                raise Refusal("too_long", f"a result has at most {RESULT_BYTES_MAX} bytes, not {len(end.text)}")
            return Result(name.number, topic.number, name.claim, "deliver", None, late, took, "done", None, end.text)
        if end.verb == "back":
            return Result(name.number, topic.number, name.claim, "release", now, -1, 0.0)
        following = None
        if end.verb == "again":
            following = self._next(topic, name.attempt, now)
            if following is not None and end.time_ms is not None:
                following = now + end.time_ms
        why = end.text[:WHY_BYTES_MAX]
        return Result(name.number, topic.number, name.claim, "fail", following, late, took, "failed", None, why)

    def _next(self, topic: Topic, attempt: int, now: int) -> int | None:
        """When a message is due again; None: that was its last attempt."""
        place = topic.retries_ms, topic.jitter
        plan = self._plans.get(place)
        if plan is None:
            plan = self._plans[place] = _engines.RetryPlan(topic.retries_ms, jitter=topic.jitter)
        return plan.next(attempt, now, None, random.getrandbits(64))

    def _topic(self, name: str) -> Topic:
        """Raises `NoTopic`, and `Refusal` where nothing is leased."""
        topic = self._topics.named(name)
        if topic is None:
            raise NoTopic(name)
        if not topic.is_leased:
            raise Refusal("bad_request", f"topic {name} has the target {topic.callback!r:.80}; only pull: is leased")
        return topic

    # --- the text of a lease --------------------------------------------------------------------------------------

    def _text(self, topic: Topic, name: _Name) -> str:
        packed = NAME.pack(*name)
        text = b2a_base64(packed + self._mac(topic, packed), newline=False).decode()
        return text.replace("+", "-").replace("/", "_")[:TEXT_CHARS]

    def _name(self, topic: Topic, text: str) -> _Name:
        """Raises `Refusal` for a text that is not a lease of this topic."""
        packed = b""
        if len(text) == TEXT_CHARS:
            with contextlib.suppress(ValueError):
                packed = a2b_base64(text.replace("-", "+").replace("_", "/") + PADDING, strict_mode=True)
        packed, mac = packed[: NAME.size], packed[NAME.size :]
        if len(packed) != NAME.size or not hmac.compare_digest(mac, self._mac(topic, packed)):
            raise Refusal("bad_body", f"{text!r:.60} is not a lease of topic {topic.name}")
        return _Name._make(NAME.unpack(packed))

    def _mac(self, topic: Topic, packed: bytes) -> bytes:
        key = _key(self._topics.key)
        return hashlib.blake2b(topic.number.to_bytes(4, "big") + packed, key=key, digest_size=MAC_BYTES).digest()


@functools.lru_cache(maxsize=4)
def _key(secret: bytes) -> bytes:
    """The key of leases; a changed secret of topics has another one."""
    return hashlib.blake2b(secret, person=b"muster lease").digest()
