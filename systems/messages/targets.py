"""Targets: where a message goes when it fires. Owns their text form; it must not know how one is reached."""

import functools
import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from muster.sizes import MESSAGE_BYTES_MAX, SEND_BYTES_MAX
from muster_server.plane import ways

TARGET_CHARS_MAX: Final = 2_048
PARSED_MAX: Final = 4_096
"""Limit of parsed targets in memory: most messages go to the same few."""
TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Pattern of a topic's name."""
KAFKA_TOPIC: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
USER: Final = re.compile(r"0|[1-9][0-9]{0,19}")
USER_MAX: Final = (1 << 64) - 1
PULL: Final = "pull:"
"""The target of a topic whose messages programs lease."""
SUBSCRIBERS: Final = "topics:"
"""The target of a topic whose messages go to other topics begins with this."""
SUBSCRIBERS_MAX: Final = 16
Kind = str
"""`callback`, `room`, `user`, `kafka`, `pull`, `topics`, or a kind of another system (`plane.ways.targets`)."""
ALWAYS: Final[frozenset[Kind]] = frozenset({"callback", "room", "pull", "topics"})
"""Kinds that are reached everywhere."""
LACKS: Final[dict[Kind, str]] = {
    "kafka": "targets kafka:TOPIC need callbacks.kafka with the servers of Kafka",
    "user": "targets user:ID need the system presence, which does not run here (systems.enabled)",
}
BODY_BYTES_MAX: Final[dict[Kind, int]] = {"room": MESSAGE_BYTES_MAX, "user": SEND_BYTES_MAX}
"""Limit of bytes for each kind of target, if lower than the schedule's."""


class TargetError(ValueError):
    """A text is not a valid target. The text is one line."""


class Target(NamedTuple):
    """`kind` and its parameter: a URL, a room's name, a user, a Kafka topic, names of topics; nothing where programs
    lease."""

    kind: Kind
    name: str


@functools.lru_cache(PARSED_MAX)
def parse(text: str) -> Target:
    """Parse `https://…`, `http://…`, `room:NAME`, `user:ID`, `kafka:TOPIC`, `pull:`, `topics:NAME,…`, or `KIND:NAME` of
    another system. Raises `TargetError`."""
    if len(text) > TARGET_CHARS_MAX or not text.isprintable():
        raise TargetError(f"target {text!r:.80} is longer than {TARGET_CHARS_MAX} characters, or not printable")
    if text.startswith(("https://", "http://")):
        try:
            parts = urlsplit(text)
            known = bool(parts.hostname) and parts.port != 0
        except ValueError:
            known = False
        if not known or parts.username is not None or " " in text:
            raise TargetError(
                f"target {text!r:.80} has an invalid URL (expected for example https://shop.example/hook)"
            )
        return Target("callback", text)
    if text == PULL:
        return Target("pull", "")
    kind, colon, name = text.partition(":")
    if colon and name:
        if kind == "room":
            return Target("room", name)
        if kind == "kafka":
            if not KAFKA_TOPIC.fullmatch(name):
                raise TargetError(f"target {text!r:.80} has an invalid topic of Kafka")
            return Target("kafka", name)
        if kind == "user":
            if not USER.fullmatch(name) or int(name) > USER_MAX:
                raise TargetError(f"target {text!r:.80} has an invalid user (expected a number from 0 to 2^64-1)")
            return Target("user", name)
        if kind == "topics":
            names = name.split(",")
            if not all(map(TOPIC.fullmatch, names)) or len(set(names)) < len(names) or len(names) > SUBSCRIBERS_MAX:
                raise TargetError(
                    f"target {text!r:.80} has invalid topics (expected 1 to {SUBSCRIBERS_MAX} different names with "
                    "commas between them)"
                )
            return Target("topics", name)
        if into := ways.targets().get(kind):
            if not re.fullmatch(into.name, name, re.ASCII):
                raise TargetError(f"target {text!r:.80} has an invalid name (expected {into.expected})")
            return Target(kind, name)
    others = "".join(f"{each}:NAME, " for each in ways.targets())
    raise TargetError(
        f"target {text!r:.80} is not https://…, room:NAME, user:ID, kafka:TOPIC, {others}pull:, or topics:NAME,NAME"
    )


def accepted(text: str, kinds: frozenset[Kind]) -> Target:
    """The same for a kind that can be reached here. Raises `TargetError`."""
    target = parse(text)
    if target.kind not in kinds:
        raise TargetError(lacks(target.kind))
    return target


def lacks(kind: Kind) -> str:
    """Why a kind cannot be reached here."""
    if kind in LACKS:
        return LACKS[kind]
    return f"targets {kind}:NAME need the system {ways.owner(kind)}, which does not run here (systems.enabled)"


def most_bytes(kind: Kind, most: int) -> int:
    """Limit of a body for this kind of target; `most`: that of the schedule."""
    into = ways.targets().get(kind)
    return min(most, into.bytes_max) if into else BODY_BYTES_MAX.get(kind, most)
