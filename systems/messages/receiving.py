"""Accepts and changes messages, and leases them to programs: for a process that knows the topics and reaches a center.

Joins `receiver` and `leasing` to their center, and counts what came. The HTTP face has one of its own; the role `receive`
serves one to commands and other systems. It must not know how requests come.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from muster_server.plane.asking import Look
from muster_server.systems.messages.leasing import Leasing
from muster_server.systems.messages.link import LEASES_MAX, CenterLink, LeasesLink, Link
from muster_server.systems.messages.options import ReceiveOptions
from muster_server.systems.messages.receiver import NoTopic, Receiver, Unreachable
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.shapes import (
    Change,
    Changed,
    Lease,
    Leased,
    LeaseEnd,
    LeaseSaid,
    Refused,
    Send,
    Sent,
    Shown,
)
from muster_server.systems.messages.system import CENTER, RECEIVE, MessagesSettings
from muster_server.systems.messages.topics import Book, Topics

LEASE_MORE_S: Final = 15.0
"""Beside the time for which a request waits for messages."""
COUNTERS: Final = {
    "messages_received": "Messages answered as durable, including repeated ones",
    "messages_refused": "Messages refused",
    "messages_changes": "Requested cancels, postponements and advances",
}
Count = Callable[[str, int], None]
"""Adds to one of `COUNTERS`."""


class Receiving:
    """Carries requests out here. All raise `Refusal`."""

    def __init__(self, settings: MessagesSettings, topics: Topics, centers: Look, token: bytes, count: Count) -> None:
        options = msgspec.convert(settings.options, ReceiveOptions)
        self._topics, self._count = topics, count
        self._link = Link(CENTER, centers, token)
        self._receiver = Receiver(
            topics,
            CenterLink(self._link),
            body_bytes_max=options.body_bytes_max,
            delay_days_max=options.delay_days_max,
            kinds=frozenset(settings.targets),
        )
        self._leases_link = Link(CENTER, centers, token, requests_max=LEASES_MAX)
        self._leasing = Leasing(topics, LeasesLink(self._leases_link))

    async def send(self, topic: str, sends: Sequence[Send]) -> list[Sent | Refused]:
        """As `Receiver.send`."""
        with self._known(topic):
            answers = await self._receiver.send(topic, sends)
        kept = sum(isinstance(each, Sent) for each in answers)
        self._count("messages_received", kept)
        self._count("messages_refused", len(answers) - kept)
        return answers

    async def change(self, topic: str, changes: Sequence[Change]) -> list[Changed | Refused]:
        """As `Receiver.change`."""
        with self._known(topic):
            answers = await self._receiver.change(topic, changes)
        self._count("messages_changes", len(answers))
        return answers

    async def show(self, topic: str, ids: Sequence[str]) -> list[Shown | None]:
        """As `Receiver.show`."""
        with self._known(topic):
            return await self._receiver.show(topic, ids)

    async def lease(self, asked: Lease) -> list[Leased]:
        """As `Leasing.lease`."""
        with self._known(asked.topic):
            return await self._leasing.lease(asked)

    async def end_leases(self, topic: str, ends: Sequence[LeaseEnd]) -> list[LeaseSaid]:
        """As `Leasing.end`."""
        with self._known(topic):
            return await self._leasing.end(topic, ends)

    async def close(self) -> None:
        """Close the connections."""
        await self._link.close()
        await self._leases_link.close()

    @contextlib.contextmanager
    def _known(self, topic: str) -> Iterator[None]:
        """Look at the topics, and make refusals of errors."""
        if self._topics.named(topic) is None:
            self._topics.look()  # they may be a moment old
        if not self._topics.known:
            raise Refusal("unavailable", "the topics are not known here yet; try again")
        try:
            yield
        except NoTopic as error:
            raise Refusal("not_found", f"no topic {str(error)!r:.80}") from None
        except Unreachable as error:
            raise Refusal(
                "unavailable", f"{error}; the request may have been carried out: repeat it with the same ids"
            ) from None


class Receivers:
    """The same by the nodes of the role `receive`, for a process without the settings of messages. Raises `Unreachable`
    too."""

    def __init__(self, receivers: Look, token: bytes) -> None:
        self._link = Link(RECEIVE, receivers, token)
        self._leases_link = Link(RECEIVE, receivers, token, requests_max=LEASES_MAX)

    async def send(self, topic: str, sends: Sequence[Send]) -> list[Sent | Refused]:
        """As `Receiving`."""
        return await self._link.ask("send", (topic, sends), list[Sent | Refused])

    async def change(self, topic: str, changes: Sequence[Change]) -> list[Changed | Refused]:
        """As `Receiving`."""
        return await self._link.ask("change", (topic, changes), list[Changed | Refused])

    async def show(self, topic: str, ids: Sequence[str]) -> list[Shown | None]:
        """As `Receiving`."""
        return await self._link.ask("show", (topic, ids), list[Shown | None])

    async def lease(self, asked: Lease) -> list[Leased]:
        """As `Receiving`."""
        return await self._leases_link.ask("lease", asked, list[Leased], timeout_s=asked.wait_s + LEASE_MORE_S)

    async def end_leases(self, topic: str, ends: Sequence[LeaseEnd]) -> list[LeaseSaid]:
        """As `Receiving`."""
        return await self._link.ask("leases", (topic, ends), list[LeaseSaid])

    async def close(self) -> None:
        """As `Receiving`."""
        await self._link.close()
        await self._leases_link.close()


Receives = Receiving | Receivers


class Following:
    """Keeps the topics of a process as they are in their file, or at the node that has it on another machine."""

    def __init__(self, topics: Topics, ask: Callable[[int], Awaitable[Book | None]] | None) -> None:
        """`ask`: returns the topics of that node if they are newer than this version; None in the process that writes the
        file. Raises `Refusal`, `Unreachable`."""
        self._topics, self._ask = topics, ask
        if not topics.look():
            topics.recall()

    async def changed(self) -> bool:
        """Whether the topics changed."""
        if self._topics.look():
            return True
        if self._topics.has_file or self._ask is None:
            return False
        try:
            book = await self._ask(self._topics.version)
        except (Refusal, Unreachable):  # the last topics stay
            return False
        return book is not None and self._topics.tell(book)


async def newer(admin: Link, version: int) -> Book | None:
    """The topics, if they are newer than this version. Raises `Refusal`, `Unreachable`."""
    (book,) = await admin.ask("book", version, tuple[Book | None])
    return book


def given(settings: Any) -> tuple[MessagesSettings, Topics]:
    """The settings that `system.told` made, and the topics that they name."""
    found = msgspec.convert(settings, MessagesSettings)
    return found, Topics(Path(found.topics))
