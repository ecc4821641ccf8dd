"""The receiver as a process: serves commands, other systems, and HTTP faces without the settings of messages."""

from collections.abc import Mapping
from pathlib import Path

from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec
from muster_server.systems.messages.listener import Question
from muster_server.systems.messages.receiving import COUNTERS, Receives, Receiving
from muster_server.systems.messages.service import MessagesService, answering
from muster_server.systems.messages.shapes import Change, Lease, LeaseEnd, Send
from muster_server.systems.messages.system import CENTER, MessagesSettings
from muster_server.systems.messages.topics import Topics


class ReceiveService(MessagesService):
    """The `plane.service.Service` of a receiver."""

    def __init__(self, spec: Spec, settings: MessagesSettings, context: Context) -> None:
        super().__init__(spec, context, settings.folder, Topics(Path(settings.topics)))
        self._centers = self.places.of(CENTER)
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._receiving = Receiving(settings, self.topics, self._centers, self.token, self._count)

    def _count(self, name: str, count: int) -> None:
        self._counts[name] += count

    async def shut(self) -> None:
        """Close the links."""
        await self._receiving.close()

    def is_ready(self) -> bool:
        """Whether it knows the topics and a center."""
        return self.topics.known and bool(self._centers())

    def questions(self) -> Mapping[str, Question]:
        """The requests that it serves, by name."""
        return questions(self._receiving)

    def counters(self) -> list[Figure]:
        """Messages and changes."""
        return [
            *super().counters(),
            *((name, text, float(self._counts[name])) for name, text in COUNTERS.items()),
        ]


def questions(receives: Receives) -> Mapping[str, Question]:
    """The questions that `receiving.Receivers` asks; each names its topic first."""
    return {
        "send": answering(lambda asked: receives.send(*asked), tuple[str, list[Send]]),
        "change": answering(lambda asked: receives.change(*asked), tuple[str, list[Change]]),
        "show": answering(lambda asked: receives.show(*asked), tuple[str, list[str]]),
        "lease": Question(Lease, answer=receives.lease, waits=True),
        "leases": answering(lambda asked: receives.end_leases(*asked), tuple[str, list[LeaseEnd]]),
    }


def build(spec: Spec, settings: MessagesSettings, context: Context) -> ReceiveService:
    """Make the receiver. Raises `SpecError`."""
    return ReceiveService(spec, settings, context)
