"""The receiver as a process: answers the HTTP face, the command and programs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec
from muster_server.systems.http.problems import Problem
from muster_server.systems.messages.http import bodies
from muster_server.systems.messages.leasing import Leasing
from muster_server.systems.messages.link import LEASES_MAX, CenterLink, LeasesLink, Link
from muster_server.systems.messages.listener import Question
from muster_server.systems.messages.options import ReceiveOptions
from muster_server.systems.messages.receiver import NoTopic, Receiver, Unreachable
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.service import MessagesService, answering
from muster_server.systems.messages.shapes import Change, Lease, LeaseEnd, Refused, Send, Sent
from muster_server.systems.messages.system import CENTER, MessagesSettings
from muster_server.systems.messages.topics import Topics


class ReceiveService(MessagesService):
    """The `plane.service.Service` of a receiver."""

    def __init__(self, spec: Spec, settings: MessagesSettings, context: Context) -> None:
        super().__init__(spec, context, settings.folder, Topics(Path(settings.topics)))
        options = msgspec.convert(settings.options, ReceiveOptions)
        self._centers = self.places.of(CENTER)
        self._link = Link(CENTER, self._centers, self.token)
        self._receiver = Receiver(
            self.topics,
            CenterLink(self._link),
            body_bytes_max=options.body_bytes_max,
            delay_days_max=options.delay_days_max,
            kinds=frozenset(settings.targets),
        )
        self._leases_link = Link(CENTER, self._centers, self.token, requests_max=LEASES_MAX)
        self._leasing = Leasing(self.topics, LeasesLink(self._leases_link))
        self._sent = self._refused = self._changed = 0

    async def shut(self) -> None:
        """Close the link."""
        await self._link.close()
        await self._leases_link.close()

    def is_ready(self) -> bool:
        """Whether it knows the topics and a center."""
        return self.topics.known and bool(self._centers())

    def questions(self) -> Mapping[str, Question]:
        """The questions; each names its topic first."""
        return {
            "send": answering(self._send, tuple[str, list[Send]]),
            "send_json": answering(self._send_json, tuple[str, bytes]),
            "change": answering(self._change, tuple[str, list[Change]]),
            "show": answering(self._show, tuple[str, list[str]]),
            "lease": Question(Lease, answer=self._lease, waits=True),
            "leases": answering(self._leases, tuple[str, list[LeaseEnd]]),
        }

    async def _send(self, asked: tuple[str, list[Send]]) -> Sequence[Sent | Refused]:
        answers: Sequence[Sent | Refused] = await _told(self._receiver.send(*asked))
        kept = sum(isinstance(each, Sent) for each in answers)
        self._sent += kept
        self._refused += len(answers) - kept
        return answers

    async def _send_json(self, asked: tuple[str, bytes]) -> tuple[int, int, bytes]:
        """A batch as it came over HTTP, so that each message is decoded once. Returns the numbers of accepted and
        refused messages, and the answer in JSON."""
        topic, body = asked
        try:
            sends = bodies.batch(body)
        except Problem as problem:
            raise Refusal(problem.code, problem.detail) from None
        answers = await self._send((topic, sends))
        kept = sum(isinstance(each, Sent) for each in answers)
        return kept, len(answers) - kept, bodies.accepted_batch(answers)

    async def _change(self, asked: tuple[str, list[Change]]) -> Any:
        answers = await _told(self._receiver.change(*asked))
        self._changed += len(answers)
        return answers

    async def _show(self, asked: tuple[str, list[str]]) -> Any:
        return await _told(self._receiver.show(*asked))

    async def _lease(self, asked: Lease) -> Any:
        return await _told(self._leasing.lease(asked))

    async def _leases(self, asked: tuple[str, list[LeaseEnd]]) -> Any:
        return await _told(self._leasing.end(*asked))

    def counters(self) -> list[Figure]:
        """Messages and changes."""
        return [
            *super().counters(),
            ("messages_received", "Messages answered as durable, including repeated ones", float(self._sent)),
            ("messages_refused", "Messages refused", float(self._refused)),
            ("messages_changes", "Requested cancels, postponements and advances", float(self._changed)),
        ]


async def _told(answer: Any) -> Any:
    try:
        return await answer
    except NoTopic as error:
        raise Refusal("not_found", f"no topic {str(error)!r:.80}") from None
    except Unreachable as error:
        raise Refusal(
            "unavailable", f"{error}; the request may have been carried out: repeat it with the same ids"
        ) from None


def build(spec: Spec, settings: MessagesSettings, context: Context) -> ReceiveService:
    """Make the receiver. Raises `SpecError`."""
    return ReceiveService(spec, settings, context)
