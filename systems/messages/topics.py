"""Topics: their settings, and the file in which all nodes of the system find them.

One node writes the file atomically; the others check it repeatedly, and keep the last content while it cannot be read.
It must not know messages or callbacks.
"""

import base64
import os
import secrets
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from muster_server import _engines
from muster_server.plane.files import write_atomically
from muster_server.systems.messages.targets import ALWAYS, PULL, SUBSCRIBERS, TOPIC, Kind, TargetError, accepted, parse

FORMAT: Final = 1
FILE: Final = "topics.json"
SEEN: Final = "topics-seen.json"
"""Name of the file with the last topics that a node of another machine got."""
SECRET_BYTES: Final = 24
"""Size of a topic's first secret, as Standard Webhooks advise."""
NETWORKS_MAX: Final = 32
"""Limit of networks of one topic."""
LISTS_MAX: Final = 16
"""Limit of different lists of these over all topics: each has its own thread and connections in every worker."""
RETRIES_MS: Final = (1_000, 10_000, 60_000, 300_000, 3_000_000)

PAUSE_S: Final = 600.0
"""Longest pause that a target may request, unless its topic sets another."""
OVERLAP_S: Final = 86_400.0
"""Seconds for which a replaced secret still signs beside the new one."""

Intervals = Annotated[tuple[Annotated[int, Meta(ge=1, le=604_800_000)], ...], Meta(max_length=100)]
Workers = Annotated[int, Meta(ge=0, le=1_000)]
Jitter = Annotated[int, Meta(ge=0, le=1_000)]
TimeoutS = Annotated[float, Meta(ge=0.1, le=60)]
PauseS = Annotated[float, Meta(ge=0, le=86_400)]
Rate = Annotated[float, Meta(ge=0, le=1_000_000)]
PerKey = Annotated[int, Meta(ge=0, le=1_000)]
Concurrency = Annotated[int, Meta(ge=0, le=1_000_000)]
Allowed = Annotated[tuple[str, ...], Meta(max_length=NETWORKS_MAX)]
Policy = Literal["random", "round-robin", "weighted-round-robin", "weighted-random", "least-loaded"]
POLICIES: Final[tuple[Policy, ...]] = (
    "random",
    "round-robin",
    "weighted-round-robin",
    "weighted-random",
    "least-loaded",
)


class TopicError(ValueError):
    """A topic cannot be made or removed. The text is one line; `code` is for programs."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Topic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One topic. Its number is never given to another one.

    A setting that has its default is not written, so nodes of versions before that setting can read the file.
    """

    number: Annotated[int, Meta(ge=1, le=(1 << 32) - 1)]
    name: str
    callback: str
    """The target of its messages that name none: see `targets.py`."""
    secrets: tuple[str, ...]
    """`whsec_…`: the current one, and after it the one that it replaces until `retire_at`. All of them sign callbacks."""
    retire_at: int = 0
    """Time at which a second secret stops signing, in ms since 1970."""
    workers: Workers = 0
    """Number of workers that fire its messages; 0: all."""
    policy: Policy = "weighted-round-robin"
    retries_ms: Intervals = RETRIES_MS
    jitter: Jitter = 100
    """Longest random extension of an interval, in thousandths."""
    timeout_s: TimeoutS = 10.0
    """Limit of one callback, in seconds."""
    allowed: Allowed = ()
    """Networks that its callbacks may reach, besides public addresses and `callbacks.allowed`."""
    retry_after_max_s: PauseS = PAUSE_S
    """Longest pause that its targets may request by `Retry-After`, in seconds."""
    rate: Rate = 0.0
    """Limit of messages per second that are fired or leased; 0: no limit."""
    concurrency: Concurrency = 0
    """Limit of messages in progress over all workers; 0: no limit besides those of workers."""
    per_key: PerKey = 0
    """Limit of messages of one key that are open, from their first attempt to their end; 1: they go one after another, in
    the order of their due times; 0: no limit."""
    rate_per_key: Rate = 0.0
    """Limit of messages of one key per second that are fired or leased; 0: no limit."""
    dead_stops_key: bool = False
    """True: a dead letter stays open until it is replayed or dropped, so messages of its key wait."""
    paused: bool = False
    """True: its messages wait, also when they are due, until it is resumed."""

    @property
    def is_leased(self) -> bool:
        """Whether programs lease its messages."""
        return self.callback == PULL

    @property
    def subscribers(self) -> tuple[str, ...]:
        """The topics that get its messages; none: it has another target."""
        return tuple(parse(self.callback).name.split(",")) if self.callback.startswith(SUBSCRIBERS) else ()

    @property
    def attempts_max(self) -> int:
        """Limit of attempts of a message."""
        return len(self.retries_ms) + 1


class Book(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    format: int = FORMAT
    version: int = 0
    key: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    """Key of the mapping of ids to numbers, so that nobody can choose two ids with one number."""
    next: int = 1
    """The number of the next topic."""
    topics: tuple[Topic, ...] = ()


class NewTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a new topic."""

    name: str
    callback: str
    secret: str = ""
    """Empty: a secret is made."""
    workers: Workers = 0
    policy: Policy = "weighted-round-robin"
    retries_ms: Intervals = RETRIES_MS
    jitter: Jitter = 100
    timeout_s: TimeoutS = 10.0
    allowed: Allowed = ()
    retry_after_max_s: PauseS = PAUSE_S
    rate: Rate = 0.0
    concurrency: Concurrency = 0
    per_key: PerKey = 0
    rate_per_key: Rate = 0.0
    dead_stops_key: bool = False


class TopicChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changed settings of a topic; fields that are not given stay unchanged. The change applies to waiting messages,
    too."""

    callback: str | None = None
    secret: str | None = None
    """Replaces the secret; empty: a new one is made."""
    overlap_s: Annotated[float, Meta(ge=0, le=31_536_000)] | None = None
    """Time for which the former secret signs beside the new one; without a new secret: beside the current one."""
    workers: Workers | None = None
    policy: Policy | None = None
    retries_ms: Intervals | None = None
    jitter: Jitter | None = None
    timeout_s: TimeoutS | None = None
    allowed: Allowed | None = None
    retry_after_max_s: PauseS | None = None
    rate: Rate | None = None
    concurrency: Concurrency | None = None
    per_key: PerKey | None = None
    rate_per_key: Rate | None = None
    dead_stops_key: bool | None = None
    paused: bool | None = None


class Topics:
    """The topics as a node knows them. `look` reloads a changed file."""

    def __init__(self, folder: Path) -> None:
        self._file, self._told = folder / FILE, folder / SEEN
        self._seen: tuple[int, int, int] | None = None
        self._book: Book | None = None
        self._by_name: Mapping[str, Topic] = {}
        self._by_number: Mapping[int, Topic] = {}

    @property
    def version(self) -> int:
        """Grows with each change; 0: none is known yet."""
        return 0 if self._book is None else self._book.version

    @property
    def key(self) -> bytes:
        """The key of the mapping of ids to numbers. Raises `TopicError` before the file was read."""
        if self._book is None:
            raise TopicError("unavailable", "the topics are not known yet; try again")
        return bytes.fromhex(self._book.key)

    @property
    def known(self) -> bool:
        """Whether the file was ever read."""
        return self._book is not None

    def look(self) -> bool:
        """Reload the file if it changed. Returns whether the topics changed."""
        try:
            info = self._file.stat()
            seen = info.st_mtime_ns, info.st_ino, info.st_size
            if seen == self._seen:
                return False
            book = msgspec.json.decode(self._file.read_bytes(), type=Book)
        except (OSError, msgspec.MsgspecError):
            return False
        self._seen = seen
        if self._book is not None and book.version <= self._book.version:
            return False
        self._take(book)
        return True

    @property
    def has_file(self) -> bool:
        """Whether the file is on this machine; otherwise another node tells the topics."""
        return self._seen is not None

    def recall(self) -> None:
        """Start with the last topics that were received."""
        try:
            self._take(msgspec.json.decode(self._told.read_bytes(), type=Book))
        except (OSError, msgspec.MsgspecError):
            return

    def tell(self, book: Book) -> bool:
        """Use the topics of the node with the file, and store them for the next start. Raises `OSError`."""
        if book.version <= self.version:
            return False
        self._take(book)
        self._told.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(self._told, book)
        return True

    def newer(self, version: int) -> Book | None:
        """The topics, if they are newer than this version."""
        return self._book if self.version > version else None

    def keep_copy(self, file: Path) -> None:
        """Store a copy of the topics with the schedule: without the key, ids of messages mean nothing. Raises
        `OSError`."""
        if self._book is not None:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(file, self._book)

    def _take(self, book: Book) -> None:
        self._book = book
        self._by_name = {topic.name: topic for topic in book.topics}
        self._by_number = {topic.number: topic for topic in book.topics}

    def named(self, name: str) -> Topic | None:
        """The topic of this name; reads the file again before it returns None."""
        found = self._by_name.get(name)
        if found is None and self.look():
            found = self._by_name.get(name)
        return found

    def numbered(self, number: int) -> Topic | None:
        """The topic of this number; None once it was removed."""
        return self._by_number.get(number)

    def all(self) -> tuple[Topic, ...]:
        """All topics, in the order in which they were made."""
        return () if self._book is None else self._book.topics


class TopicsFile(Topics):
    """The same for the one node that writes the file."""

    def __init__(self, folder: Path, topics_max: int, kinds: frozenset[Kind] = ALWAYS) -> None:
        """`kinds`: those of targets that can be reached."""
        super().__init__(folder)
        self._folder, self._max, self._kinds = folder, topics_max, kinds

    def open(self, copy: Path | None = None) -> bool:
        """Read the file, or create it; a lost one is restored from the schedule's copy. Returns whether it was
        restored.

        Raises `OSError`, and `ValueError` for a damaged file.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._file.exists():
            self._take(_read(self._file))
        elif copy is not None and copy.exists():
            self._write(_read(copy))
            return True
        else:
            self._write(Book(version=1, key=secrets.token_hex(32)))
        return False

    def create(self, new: NewTopic) -> Topic:
        """Add a topic; adding the same topic again changes nothing. Raises `TopicError` and `OSError`."""
        book = self._whole()
        if not TOPIC.fullmatch(new.name):
            raise TopicError(
                "bad_request",
                f"invalid name {new.name!r:.80} (expected 1 to 64 letters, digits, dots, dashes, underscores)",
            )
        self._check(new.name, new.callback, new.secret, new.concurrency)
        new = msgspec.structs.replace(new, allowed=_networks(new.allowed))
        self._check_lists(book.topics, new.allowed)
        before = self._by_name.get(new.name)
        asked = {name: getattr(new, name) for name in new.__struct_fields__ if name != "secret"}
        if before is not None:
            known = {name: getattr(before, name) for name in asked}
            if asked == known and new.secret in {"", *before.secrets}:
                return before
            raise TopicError("conflict", f"topic {new.name} exists with other settings")
        if len(book.topics) >= self._max:
            raise TopicError("busy", f"too many topics (limit {self._max}; see messages.topics_max)")
        topic = Topic(number=book.next, secrets=(new.secret or new_secret(),), **asked)
        self._write(
            msgspec.structs.replace(book, version=book.version + 1, next=book.next + 1, topics=(*book.topics, topic))
        )
        return topic

    def _check(self, name: str, callback: str, secret: str, concurrency: int) -> None:
        """Raises `TopicError`."""
        try:
            target = accepted(callback, self._kinds)
        except TargetError as error:
            raise TopicError("bad_request", str(error)) from None
        if target.kind == "topics":
            self._check_subscribers(name, target.name.split(","))
        if target.kind == "pull" and concurrency:
            raise TopicError(
                "bad_request",
                f"topic {name}: a concurrency is for workers; programs lease its messages (see muster work --at-once)",
            )
        try:
            if secret:
                _engines.webhook_verify(secret, "", 0, b"", "", 0)
        except ValueError as error:
            raise TopicError(
                "bad_request", f"{error} (expected a secret whsec_ and base64 of 24 to 64 bytes)"
            ) from None

    def _check_subscribers(self, name: str, subscribers: Sequence[str]) -> None:
        """Messages go from topic to topic in one step only, so they cannot go in circles. Raises `TopicError`."""
        for each in subscribers:
            topic = self._by_name.get(each)
            if each == name:
                raise TopicError("bad_request", f"topic {name} cannot subscribe to itself")
            if topic is None:
                raise TopicError("bad_request", f"no topic {each!r:.80}; create the subscribers first")
            if topic.subscribers:
                raise TopicError("bad_request", f"topic {each} has subscribers of its own; name these instead")
        if publisher := self._publisher(name):
            raise TopicError("conflict", f"topic {name} subscribes to topic {publisher}, so it cannot have subscribers")

    def _publisher(self, name: str) -> str:
        """A topic to which this one subscribes; empty: to none."""
        return next((each.name for each in self.all() if name in each.subscribers), "")

    @staticmethod
    def _check_lists(topics: Sequence[Topic], allowed: tuple[str, ...]) -> None:
        """Raises `TopicError`."""
        if len({each.allowed for each in topics} | {allowed}) > LISTS_MAX:
            raise TopicError("busy", f"too many different network lists (limit {LISTS_MAX})")

    def change(self, name: str, change: TopicChange, now: int) -> Topic:
        """Change settings of a topic; `now` in ms since 1970. Raises `TopicError` and `OSError`."""
        book = self._whole()
        topic = self._by_name.get(name)
        if topic is None:
            raise TopicError("not_found", f"no topic {name!r:.80}")
        callback = topic.callback if change.callback is None else change.callback
        concurrency = topic.concurrency if change.concurrency is None else change.concurrency
        self._check(name, callback, change.secret or "", concurrency)
        plain = (
            "callback",
            "workers",
            "policy",
            "retries_ms",
            "jitter",
            "timeout_s",
            "retry_after_max_s",
            "rate",
            "concurrency",
            "per_key",
            "rate_per_key",
            "dead_stops_key",
            "paused",
        )
        given = {name: value for name in plain if (value := getattr(change, name)) is not None}
        if change.allowed is not None:
            given["allowed"] = _networks(change.allowed)
            others = [each for each in book.topics if each is not topic]
            self._check_lists(others, given["allowed"])
        changed = _signed(msgspec.structs.replace(topic, **given), change, now)
        if changed != topic:
            self._replace(book, {topic.number: changed})
        return changed

    def retire(self, now: int) -> Sequence[Topic]:
        """Drop secrets whose time is over. Returns the topics that had one. Raises `OSError`."""
        book = self._whole()
        over = [each for each in book.topics if len(each.secrets) > 1 and each.retire_at <= now]
        if over:
            self._replace(book, {each.number: _retired(each) for each in over})
        return over

    def _replace(self, book: Book, changed: Mapping[int, Topic]) -> None:
        topics = tuple(changed.get(each.number, each) for each in book.topics)
        self._write(msgspec.structs.replace(book, version=book.version + 1, topics=topics))

    def remove(self, name: str) -> Topic:
        """Remove a topic; its messages are not fired any more. Raises `TopicError` and `OSError`."""
        book = self._whole()
        topic = self._by_name.get(name)
        if topic is None:
            raise TopicError("not_found", f"no topic {name!r:.80}")
        if publisher := self._publisher(name):
            raise TopicError("conflict", f"topic {name} subscribes to topic {publisher}; end that first")
        rest = tuple(each for each in book.topics if each is not topic)
        self._write(msgspec.structs.replace(book, version=book.version + 1, topics=rest))
        return topic

    def _whole(self) -> Book:
        assert self._book is not None, "it was opened"
        return self._book

    def _write(self, book: Book) -> None:
        _write(self._file, book)
        self._take(book)


def _read(file: Path) -> Book:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Book)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{file}: damaged: {error}; to mend: muster repair messages") from None


def _write(file: Path, book: Book) -> None:
    """Write atomically and durably, readable only by the owner."""
    write_atomically(file, msgspec.json.format(msgspec.json.encode(book)) + b"\n")
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _signed(topic: Topic, change: TopicChange, now: int) -> Topic:
    """The topic with the secrets that a change requests. Raises `TopicError`."""
    overlaps = len(topic.secrets) > 1 and topic.retire_at > now
    retire_at = now + round(1_000 * (OVERLAP_S if change.overlap_s is None else change.overlap_s))
    if change.secret is None:
        if change.overlap_s is None:
            return topic
        if not overlaps:
            raise TopicError("conflict", f"topic {topic.name} has one secret, so there is no overlap to change")
        kept = msgspec.structs.replace(topic, retire_at=retire_at)
        return kept if retire_at > now else _retired(kept)
    if change.secret == topic.secrets[0]:  # the same secret again
        return topic
    secret = change.secret or new_secret()
    if retire_at <= now:
        return msgspec.structs.replace(topic, secrets=(secret,), retire_at=0)
    if overlaps:
        raise TopicError(
            "conflict",
            f"topic {topic.name} has two secrets until the former one ends; end it first with an overlap of 0",
        )
    return msgspec.structs.replace(topic, secrets=(secret, topic.secrets[0]), retire_at=retire_at)


def _retired(topic: Topic) -> Topic:
    return msgspec.structs.replace(topic, secrets=topic.secrets[:1], retire_at=0)


def _networks(given: Sequence[str]) -> tuple[str, ...]:
    """Normalize networks. Raises `TopicError`."""
    try:
        return tuple(sorted({str(ip_network(each)) for each in given}))
    except ValueError as error:
        raise TopicError("bad_request", f"{error} (expected a network, for example 10.1.0.0/16)") from None


def new_secret() -> str:
    """A secret that signs callbacks, in the form of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
