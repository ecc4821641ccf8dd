"""The schedule of messages as two dicts: slow, and obvious, with the answers of `systems/messages/schedule.py`."""

from dataclasses import dataclass, replace
from typing import Any

DUE_MAX = 1 << 46
TERMINAL = {"done", "dead", "cancelled", "expired"}


@dataclass(frozen=True)
class Message:
    id: int
    version: int
    due_at: int
    expires_at: int | None
    attempts: int = 0
    state: str = "scheduled"
    time: int | None = None
    topic: int = 0
    body: bytes = b""

    @property
    def told(self) -> tuple[Any, ...]:
        return self.id, self.version, self.due_at, self.expires_at, self.attempts, self.state, self.time

    @property
    def wake_at(self) -> int | None:
        if self.state in TERMINAL:
            return None
        return self.due_at if self.state == "scheduled" else self.time


@dataclass(frozen=True)
class Ahead:
    cancelled: bool = False
    at: int | None = None
    by: int = 0
    bound: str = "exact"

    @property
    def told(self) -> tuple[Any, ...]:
        return self.cancelled, self.at, self.by, self.bound

    def asked(self, verb: str, time: int) -> "Ahead":
        """To be at a later time than the message's own, or at a sooner one, which is not known."""
        place = None if self.at is None else max(0, self.at + self.by)
        if place is not None and (time < place if verb == "later" else time > place):
            raise Refusal(f"not_{verb}", place)
        if place is not None and self.bound != verb:
            return replace(self, at=time, by=0, bound="exact")
        if time - self.by >= 0:
            return replace(self, at=time - self.by, bound=verb)
        return self if verb == "later" else replace(self, at=time, by=0, bound="exact")

    def moved(self, due_at: int) -> int:
        at = due_at if self.at is None else self.at
        if self.bound == "later":
            at = max(at, due_at)
        if self.bound == "sooner":
            at = min(at, due_at)
        return max(0, at + self.by)


class Refusal(Exception):
    def __init__(self, reason: str, value: int | None = None) -> None:
        super().__init__(reason)
        self.value = value


class Schedule:
    def __init__(self) -> None:
        self.messages: dict[int, Message] = {}
        self.ahead: dict[int, Ahead] = {}

    def insert(self, id: int, topic: int, due_at: int, expires_at: int | None, body: bytes) -> tuple[Any, ...]:
        if id in self.messages:
            return "before", self.messages[id].told
        message = Message(id, 1, due_at, expires_at, topic=topic, body=body)
        ahead = self.ahead.pop(id, Ahead())
        moved = ahead.moved(due_at)
        if moved != due_at:
            message = replace(message, due_at=moved, version=2)
        if ahead.cancelled:
            message = replace(message, state="cancelled", version=message.version + 1)
        self.messages[id] = message
        return "inserted", message.told

    def change(self, now: int, id: int, verb: str, version: int | None, time: int | None) -> tuple[Any, ...]:
        if id not in self.messages:
            if version is not None or verb not in {"cancel", "due_at", "later", "sooner", "due_by"}:
                return "refused", "unknown", None
            ahead = self.ahead.get(id, Ahead())
            if verb == "cancel":
                ahead = replace(ahead, cancelled=True)
            elif verb == "due_at":
                ahead = replace(ahead, at=time, by=0, bound="exact")
            elif verb in {"later", "sooner"}:
                try:
                    ahead = ahead.asked(verb, time or 0)
                except Refusal as refusal:
                    return "refused", str(refusal), refusal.value
            else:
                ahead = replace(ahead, by=ahead.by + (time or 0))
            self.ahead[id] = ahead
            return "ahead", *ahead.told
        before = self.messages[id]
        try:
            message, step = self._changed(now, before, verb, version, time)
        except Refusal as refusal:
            return "refused", str(refusal), refusal.value
        self.messages[id] = message
        return "changed", message.told, step

    def _changed(
        self, now: int, message: Message, verb: str, version: int | None, time: int | None
    ) -> tuple[Message, str]:
        claims = verb in {"deliver", "fail", "release", "extend"}
        if version is not None and not claims and version != message.version:
            raise Refusal("version", message.version)
        if claims:
            if message.state != "firing" or message.version != version:
                raise Refusal("claim_lost")
            if verb == "extend":
                if time is None or not now < time < DUE_MAX:
                    raise Refusal("bad_time")
                return self._set(message, "firing", time), "extended"
            if verb == "deliver":
                return self._set(message, "done"), "delivered"
            if verb == "fail" and time is None:
                return self._set(message, "dead"), "buried"
            if verb == "fail":
                return self._set(message, "retry", time), "retrying"
            return replace(self._set(message, "retry", time), attempts=message.attempts - 1), "released"
        if verb == "drop":
            if message.state != "dead":
                raise Refusal("not_dead")
            return self._set(message, "cancelled"), "dropped"
        if verb == "replay":
            if message.state != "dead":
                raise Refusal("not_dead")
            again = replace(message, due_at=time or 0, expires_at=None, attempts=0)
            return self._set(again, "scheduled"), "replayed"
        if verb == "cancel" and message.state == "cancelled":
            return message, "cancelled"
        if message.state in {"firing", "done", "dead"}:
            raise Refusal("fired")
        if message.state in {"cancelled", "expired"}:
            raise Refusal("withdrawn" if message.state == "cancelled" else "expired")
        if verb == "cancel":
            return self._set(message, "cancelled"), "cancelled"
        if verb == "wake":
            if message.state == "scheduled":
                raise Refusal("early", message.due_at)
            return self._set(message, "retry", time), "woken"
        at = message.wake_at or 0
        due_at = max(0, at + (time or 0) if verb == "due_by" else (time or 0))
        if (verb == "later" and due_at < at) or (verb == "sooner" and due_at > at):
            raise Refusal(f"not_{verb}", at)
        moved = replace(message, due_at=due_at)
        return self._set(moved, message.state, due_at if message.state == "retry" else None), "rescheduled"

    def due(self, now: int, topic: int) -> list[Message]:
        """The messages that a worker may take, oldest first."""
        due = [each for each in self.messages.values() if each.topic == topic and each.wake_at is not None]
        return sorted((each for each in due if (each.wake_at or 0) <= now), key=lambda each: each.wake_at or 0)

    def claim(self, id: int, until: int) -> Message:
        """A worker has it."""
        message = self.messages[id]
        self.messages[id] = replace(self._set(message, "firing", until), attempts=message.attempts + 1)
        return self.messages[id]

    def put(self, told: tuple[Any, ...]) -> tuple[Any, ...]:
        """What another record knows."""
        id, version, due_at, expires_at, attempts, state, time = told
        if id not in self.messages:
            return "refused", "unknown", None
        before = self.messages[id]
        if version <= before.version:
            return ("before",)
        self.messages[id] = replace(
            before,
            version=version,
            due_at=due_at,
            expires_at=expires_at,
            attempts=attempts,
            state=state,
            time=time,
        )
        return "put", told

    def put_ahead(self, id: int, cancelled: bool, at: int | None, by: int, bound: str) -> tuple[Any, ...]:
        """What another record says was asked ahead of a message."""
        if id in self.messages:
            return ("before",)
        self.ahead[id] = Ahead(cancelled, at, by, bound)
        return ("put",)

    def find(self, topic: int | None, begin: int, end: int, states: set[str]) -> list[tuple[int, int]]:
        """Times and ids, earliest first."""
        names = {"retry": "scheduled", "cancelled": "withdrawn", "expired": "withdrawn"}
        found = [
            (each.time or 0 if each.state == "retry" else each.due_at, each.id)
            for each in self.messages.values()
            if topic in {None, each.topic} and names.get(each.state, each.state) in states
        ]
        return sorted(each for each in found if begin <= each[0] < end)

    @staticmethod
    def _set(message: Message, state: str, time: int | None = None) -> Message:
        return replace(message, state=state, time=time, version=message.version + 1)
