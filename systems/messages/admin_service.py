"""The admin as a process: it writes the topics, and answers operators about messages, dead letters and figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from muster_server.control.errors import UserError
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec
from muster_server.systems.messages.answers import LastAnswer
from muster_server.systems.messages.center import now_ms
from muster_server.systems.messages.link import SCRUB_S, CenterLink, Link
from muster_server.systems.messages.listener import Question
from muster_server.systems.messages.options import AdminOptions
from muster_server.systems.messages.receiver import Unreachable, shown
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.service import MessagesService, answering
from muster_server.systems.messages.shapes import (
    BACKLOG,
    EVER,
    LIVE,
    Changed,
    Dead,
    Found,
    Listed,
    Numbers,
    Query,
    Scrubbed,
    Shown,
    Stats,
    Which,
)
from muster_server.systems.messages.system import CENTER, Told
from muster_server.systems.messages.topics import FILE, Book, NewTopic, Topic, TopicError, TopicsFile

LIMIT_MAX: Final = 1_000


class AdminService(MessagesService):
    """A `plane.service.Service`."""

    def __init__(self, spec: Spec, settings: Told, context: Context) -> None:
        options = msgspec.convert(settings.options, AdminOptions)
        self._file = TopicsFile(Path(settings.topics), options.topics_max, frozenset(settings.targets))
        self._topics_file = Path(settings.topics) / FILE
        self._copy = Path(settings.schedule) / FILE
        super().__init__(spec, context, settings.folder, self._file)
        self._link = Link(CENTER, self.places.of(CENTER), self.token)
        self._center = CenterLink(self._link)

    async def open(self) -> None:
        """Read the topics, or begin their file. Raises `UserError` for a damaged one, and for a lost one without a copy."""
        topics, hours = self._topics_file, self._copy.with_name("hours")
        if not topics.exists() and not self._copy.exists() and hours.exists() and any(hours.glob("*.ops")):
            raise UserError(
                f"{topics}: missing, and the schedule has messages: without its key no id names its message; "
                "bring the file back"
            )
        try:
            restored = self._file.open(self._copy)
        except ValueError as error:
            raise UserError(str(error)) from None
        if restored:
            self.log.error(
                "the file of the topics was lost; it came back from the schedule's copy", copy=str(self._copy)
            )

    async def shut(self) -> None:
        """Close the link."""
        await self._link.close()

    def questions(self) -> Mapping[str, Question]:
        """Of operators."""
        return {
            "topic-create": answering(self._create, NewTopic),
            "topic-remove": answering(self._remove, str),
            "topics": answering(self._topics, None),
            "book": answering(self._book, int),
            "stats": answering(self._stats, str),
            "list": answering(self._list, Query),
            "dead": answering(self._dead, Query),
            "replay": answering(self._replay, tuple[str, list[str]]),
            "scrub": answering(self._scrub, None),
        }

    # --- topics ---------------------------------------------------------------------------------------------------

    async def _create(self, new: NewTopic) -> Topic:
        try:
            return self._file.create(new)
        except TopicError as error:
            raise Refusal(error.code, str(error)) from None
        except OSError as error:
            raise Refusal("unavailable", f"the topics cannot be written: {error.strerror}") from None

    async def _remove(self, name: str) -> Topic:
        topic = self._topic(name)
        found = await self._found(Which(topic.number, 0, EVER, list(LIVE), 0))
        if found.matching:
            raise Refusal(
                "conflict", f"topic {name} has {found.matching} messages that wait; cancel them, or let them fire"
            )
        try:
            return self._file.remove(name)
        except TopicError as error:
            raise Refusal(error.code, str(error)) from None
        except OSError as error:
            raise Refusal("unavailable", f"the topics cannot be written: {error.strerror}") from None

    async def _topics(self, _: None) -> list[Topic]:
        return list(self.topics.all())

    async def _book(self, version: int) -> tuple[Book | None]:
        """For nodes of other machines."""
        return (self.topics.newer(version),)

    def _topic(self, name: str) -> Topic:
        topic = self.topics.named(name)
        if topic is None:
            raise Refusal("not_found", f"no topic {name!r:.80}")
        return topic

    # --- messages -------------------------------------------------------------------------------------------------

    async def _stats(self, name: str) -> Stats:
        topic = self._topic(name)
        minutes = await self._asked(self._link.ask("figures", topic.number, list[dict[str, Any]]))
        found = await self._found(Which(topic.number, 0, EVER, list(LIVE), 0))
        backlog = dict(zip(BACKLOG, found.backlog, strict=True))
        return Stats(topic=name, minutes=minutes, backlog=backlog, pending=found.matching, more=found.more)

    async def _list(self, query: Query) -> Listed:
        found = await self._found(self._which(query))
        return Listed(messages=self._shown(found), matching=found.matching, more=found.more)

    async def _dead(self, query: Query) -> list[Dead]:
        found = await self._found(self._which(query))
        numbers = [each[1][0] for each in found.found]
        answers = await self._asked(self._link.ask("answers", numbers, list[LastAnswer]))
        known = {each.number: each for each in answers}
        ran_out = LastAnswer(0, 0, "claim ran out", None, b"")
        letters: list[Dead] = []
        for message, number in zip(self._shown(found), numbers, strict=True):
            last = known.get(number, ran_out)
            letters.append(
                Dead(message=message, at=last.at, outcome=last.outcome, status=last.status, answer=last.answer)
            )
        return letters

    async def _replay(self, asked: tuple[str, list[str]]) -> list[Changed]:
        """Schedule dead letters again, due now."""
        name, ids = asked
        topic, key = self._topic(name), self.topics.key
        now = now_ms()
        numbers = Numbers(key, topic.number)
        changes = [(number, "replay", None, now) for number in numbers.of(ids)]
        replies = await self._asked(self._center.change(topic.number, changes))
        answers: list[Changed] = []
        for id, reply in zip(ids, replies, strict=True):
            if reply[0] == "changed":
                answers.append(Changed(id=id, outcome="done", state=reply[1][5], due_at=reply[1][2]))
            elif reply[0] == "refused" and reply[1] == "not_dead":
                answers.append(Changed(id=id, outcome="already fired"))
            else:
                answers.append(Changed(id=id, outcome="unknown"))
        return answers

    async def _scrub(self, _: None) -> Scrubbed:
        found: Scrubbed = await self._asked(self._link.ask("scrub", None, Scrubbed, timeout_s=SCRUB_S))
        return found

    def _which(self, query: Query) -> Which:
        number = self._topic(query.topic).number if query.topic else None
        return Which(number, query.begin, query.end, query.states, min(query.limit, LIMIT_MAX))

    def _shown(self, found: Found) -> list[Shown]:
        named = {topic.number: topic.name for topic in self.topics.all()}
        return [shown(named.get(each[2], str(each[2])), tuple(each)) for each in found.found]

    async def _found(self, which: Which) -> Found:
        found: Found = await self._asked(self._link.ask("list", which, Found, timeout_s=60.0))
        return found

    async def _asked(self, answer: Any) -> Any:
        try:
            return await answer
        except Unreachable as error:
            raise Refusal("unavailable", str(error)) from None


def build(spec: Spec, settings: Told, context: Context) -> AdminService:
    """Make the admin. Raises `SpecError`."""
    return AdminService(spec, settings, context)
