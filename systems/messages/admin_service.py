"""The admin as a process: it writes the topics, and answers operators about messages, dead letters and figures."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.clock import now_ms
from muster_server.control.errors import UserError
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec
from muster_server.systems.messages import recurring
from muster_server.systems.messages.answers import LastAnswer
from muster_server.systems.messages.link import SCRUB_S, CenterLink, Link
from muster_server.systems.messages.listener import Question
from muster_server.systems.messages.options import AdminOptions
from muster_server.systems.messages.receiver import NoTopic, Receiver, Unreachable, shown
from muster_server.systems.messages.recurring import Entry, NewEntry, Recurring, RecurringError
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.schedule import NewChange, place
from muster_server.systems.messages.service import MessagesService, answering
from muster_server.systems.messages.shapes import (
    BACKLOG,
    EVER,
    LIVE,
    Changed,
    Dead,
    DeadPage,
    Found,
    HeldTarget,
    LetterPage,
    LettersChanged,
    Listed,
    Numbers,
    Query,
    Scrubbed,
    Shown,
    Stats,
    TagChanged,
    TagPage,
    TopicState,
    Which,
)
from muster_server.systems.messages.system import CENTER, MessagesSettings
from muster_server.systems.messages.topics import FILE, Book, NewTopic, Topic, TopicChange, TopicError, TopicsFile

LIMIT_MAX: Final = 1_000
LOOKS: Final = 5
"""Pages of messages that a list by tag looks at."""
RETIRE_S: Final = 1.0
DELAY_MS_MAX: Final = 3_660 * 86_400_000
"""Limit of `receive.delay_days_max`, for moves by tag."""
RECURRING_DAYS_MAX: Final = 3_660
"""From one occurrence of a recurring message to the next."""


class AdminService(MessagesService):
    """The `plane.service.Service` of the admin."""

    def __init__(self, spec: Spec, settings: MessagesSettings, context: Context) -> None:
        options = msgspec.convert(settings.options, AdminOptions)
        self._file = TopicsFile(Path(settings.topics), options.topics_max, frozenset(settings.targets))
        self._topics_file = Path(settings.topics) / FILE
        self._copy = Path(settings.schedule) / FILE
        super().__init__(spec, context, settings.folder, self._file)
        self._link = Link(CENTER, self.places.of(CENTER), self.token)
        self._center = CenterLink(self._link)
        receiver = Receiver(
            self._file,
            self._center,
            body_bytes_max=recurring.BODY_BYTES_MAX,
            delay_days_max=RECURRING_DAYS_MAX,
            kinds=frozenset(settings.targets),
        )
        self._recurring = Recurring(Path(settings.topics), receiver.send, receiver.change)
        self._by_tag = dict.fromkeys(("count", "cancel", "move"), 0)
        """Messages that jobs by tag counted, cancelled and moved."""
        self._made_told = ""
        """Why recurring messages could not be made, as it was told last."""

    async def open(self) -> None:
        """Read the topics, or create their file. Raises `UserError` for a damaged file, and for a lost one without a
        copy."""
        topics, hours = self._topics_file, self._copy.with_name("hours")
        if not topics.exists() and not self._copy.exists() and hours.exists() and any(hours.glob("*.ops")):
            raise UserError(
                f"{topics}: missing, but the schedule has messages, whose ids need the file's key; restore the file"
            )
        try:
            restored = self._file.open(self._copy)
            self._recurring.open()
        except ValueError as error:
            raise UserError(str(error)) from None
        if restored:
            self.log.error(
                "the file of the topics was lost; restored it from the schedule's copy", copy=str(self._copy)
            )

    async def shut(self) -> None:
        """Close the link."""
        await self._link.close()

    def questions(self) -> Mapping[str, Question]:
        """The questions of operators."""
        return {
            "topic-create": answering(self._create, NewTopic),
            "topic-remove": answering(self._remove, str),
            "topic-forget": answering(self._forget, str),
            "topic-change": answering(self._change, tuple[str, TopicChange]),
            "topic-show": answering(self._show, str),
            "topics": answering(self._topics, None),
            "book": answering(self._book, int),
            "stats": answering(self._stats, str),
            "list": answering(self._list, Query),
            "dead-page": answering(self._dead, Query),
            "replay": answering(self._replay, tuple[str, list[str]]),
            "replay-page": answering(self._replay_page, LetterPage),
            "drop": answering(self._drop, tuple[str, list[str]]),
            "drop-page": answering(self._drop_page, LetterPage),
            "tag-page": answering(self._tag_page, TagPage),
            "scrub": answering(self._scrub, None),
            "recurring": answering(self._recurring_of, str),
            "recurring-put": answering(self._recurring_put, NewEntry),
            "recurring-remove": answering(self._recurring_remove, tuple[str, str]),
        }

    # --- topics ---------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Drop secrets whose time is over, and make recurring messages, for ever."""
        while True:
            await asyncio.sleep(RETIRE_S)
            try:
                for topic in self._file.retire(now_ms()):
                    self.log.info("the former secret of a topic does not sign any more", topic=topic.name)
            except OSError as error:  # it keeps signing, and is dropped later
                self.log.error("cannot write the topics", error=error.strerror)
            await self._make()

    async def _make(self) -> None:
        """Make recurring messages; what could not be made is told once, and made later."""
        try:
            why = "; ".join(await self._recurring.make(now_ms()))
        except (Unreachable, NoTopic, RecurringError, OSError) as error:
            why = str(error)
        if why and why != self._made_told:
            self.log.warning("recurring messages could not be made", why=why)
        self._made_told = why

    async def _recurring_of(self, topic: str) -> list[Entry]:
        if topic:
            self._topic(topic)
        return self._recurring.all(topic)

    async def _recurring_put(self, asked: NewEntry) -> Entry:
        self._topic(asked.topic)
        entry = await _entry(self._recurring.put(asked, now_ms()))
        await self._make()
        return next((each for each in self._recurring.all(asked.topic) if each.key == entry.key), entry)

    async def _recurring_remove(self, asked: tuple[str, str]) -> Entry:
        return await _entry(self._recurring.remove(*asked, now_ms()))

    async def _create(self, new: NewTopic) -> Topic:
        return _written(lambda: self._file.create(new))

    async def _change(self, asked: tuple[str, TopicChange]) -> Topic:
        name, change = asked
        return _written(lambda: self._file.change(name, change, now_ms()))

    async def _remove(self, name: str) -> Topic:
        return await self._removed(name, forget=False)

    async def _forget(self, name: str) -> Topic:
        """Remove a topic whose dead letters may be dropped."""
        return await self._removed(name, forget=True)

    async def _removed(self, name: str, *, forget: bool) -> Topic:
        topic = self._topic(name)
        if entries := self._recurring.all(name):
            raise Refusal(
                "conflict", f"topic {name} has the recurring message {entries[0].asked.name}; remove it first"
            )
        if waiting := await self._count(topic, LIVE):
            raise Refusal("conflict", f"topic {name} has {waiting} waiting messages; cancel them, or let them fire")
        if not forget and (dead := await self._count(topic, ("dead",))):
            raise Refusal(
                "conflict",
                f"topic {name} has {dead} dead letters, which become unreachable with it; replay them (muster delay dead "
                f"replay --all --topic {name}), or drop them (muster topic rm {name} --forget-dead)",
            )
        return _written(lambda: self._file.remove(name))

    async def _count(self, topic: Topic, states: Sequence[str]) -> int:
        return (await self._found(Which(topic.number, 0, EVER, list(states), 0))).matching

    async def _show(self, name: str) -> TopicState:
        topic = self._topic(name)
        pending, dead = await self._count(topic, LIVE), await self._count(topic, ("dead",))
        overdue, overdue_ms, held = await self._state(topic)
        return TopicState(topic=topic, pending=pending, dead=dead, overdue=overdue, overdue_ms=overdue_ms, held=held)

    async def _state(self, topic: Topic) -> tuple[int, int, list[HeldTarget]]:
        return await self._link.ask("state", topic, tuple[int, int, list[HeldTarget]])

    async def _topics(self, _: None) -> list[Topic]:
        return list(self.topics.all())

    async def _book(self, version: int) -> tuple[Book | None]:
        """The topics for nodes of other machines."""
        return (self.topics.newer(version),)

    def _topic(self, name: str) -> Topic:
        topic = self.topics.named(name)
        if topic is None:
            raise Refusal("not_found", f"no topic {name!r:.80}")
        return topic

    # --- messages -------------------------------------------------------------------------------------------------

    async def _stats(self, name: str) -> Stats:
        topic = self._topic(name)
        minutes = await self._link.ask("figures", topic.number, list[dict[str, Any]])
        found = await self._found(Which(topic.number, 0, EVER, list(LIVE), 0))
        backlog = dict(zip(BACKLOG, found.backlog, strict=True))
        overdue, overdue_ms, _ = await self._state(topic)
        return Stats(
            topic=name,
            minutes=minutes,
            backlog=backlog,
            pending=found.matching,
            more=found.more,
            overdue=overdue,
            overdue_ms=overdue_ms,
        )

    async def _list(self, query: Query) -> Listed:
        if query.tag:
            return await self._tagged(query)
        found = await self._found(self._which(query))
        return Listed(messages=self._shown(found), matching=found.matching, more=found.more, next=_next(found))

    async def _tagged(self, query: Query) -> Listed:
        """A page of messages with a tag: up to `limit` of them, among a bounded number of messages."""
        which = msgspec.structs.replace(self._which(query), limit=LIMIT_MAX)
        limit = max(1, min(query.limit, LIMIT_MAX))
        rows: list[list[Any]] = []
        for _ in range(LOOKS):
            found = await self._found(which)
            rows += found.found
            if found.last is None or len(rows) >= limit:
                break
            which = msgspec.structs.replace(which, after=found.last)
        last = place(rows[limit - 1][1]) if len(rows) > limit else found.last
        page = Found(rows[:limit], len(rows[:limit]), [], last is not None, last)
        return Listed(messages=self._shown(page), matching=page.matching, more=page.more, next=_next(page))

    async def _tag_page(self, asked: TagPage) -> TagChanged:
        """Count, cancel or move some of the waiting messages with a tag that were accepted before the first page was
        requested. A message that was moved already is met again at its new time, and is left."""
        now = now_ms()
        topic, until = self._topic(asked.topic), asked.until or now
        if asked.verb == "move" and not 0 <= asked.at <= now + DELAY_MS_MAX:
            raise Refusal("bad_request", f"invalid due time {asked.at} (expected 0 to {DELAY_MS_MAX} ms from now)")
        found = await self._found(
            Which(topic.number, 0, EVER, ["scheduled"], LIMIT_MAX, _after(asked.after), asked.tag)
        )
        numbers: list[int] = []
        changes: list[NewChange] = []
        for row, message in zip(found.found, self._shown(found), strict=True):
            if message.accepted_at > until or (asked.verb == "move" and message.due_at == asked.at):
                continue
            number = row[1][0]
            numbers.append(number)
            if asked.verb == "cancel":
                changes.append((number, "cancel", None, None))
            elif asked.verb == "move":
                changes.append((number, "later" if asked.at > message.due_at else "sooner", None, asked.at))
        replies = await self._center.change(topic.number, changes) if changes else []
        done = sum(reply[0] == "changed" for reply in replies)
        self._by_tag[asked.verb] += len(numbers) if asked.verb == "count" else done
        if full := next((reply for reply in replies if reply[0] == "disk_full"), None):
            raise Refusal(full[0], "the disk of the schedule is full; some messages were not changed")
        late = len(replies) - done
        return TagChanged(found.looked, len(numbers), done, late, until, _next(found))

    async def _dead(self, query: Query) -> DeadPage:
        found = await self._found(self._which(query))
        numbers = [each[1][0] for each in found.found]
        answers = await self._link.ask("answers", numbers, list[LastAnswer])
        known = {each.number: each for each in answers}
        ran_out = LastAnswer(0, 0, "claim ran out", None, b"")
        letters: list[Dead] = []
        for message, number in zip(self._shown(found), numbers, strict=True):
            last = known.get(number, ran_out)
            letters.append(
                Dead(message=message, at=last.at, outcome=last.outcome, status=last.status, answer=last.answer)
            )
        return DeadPage(letters, _next(found))

    async def _replay(self, asked: tuple[str, list[str]]) -> list[Changed]:
        """Schedule dead letters again, due now."""
        return await self._letters(*asked, "replay", now_ms())

    async def _drop(self, asked: tuple[str, list[str]]) -> list[Changed]:
        """Cancel dead letters."""
        return await self._letters(*asked, "drop", None)

    async def _letters(self, name: str, ids: list[str], verb: str, time: int | None) -> list[Changed]:
        topic, key = self._topic(name), self.topics.key
        changes = [(number, verb, None, time) for number in Numbers(key, topic.number).of(ids)]
        replies = await self._center.change(topic.number, changes)
        answers: list[Changed] = []
        for id, reply in zip(ids, replies, strict=True):
            if reply[0] == "changed":
                answers.append(Changed(id=id, outcome="done", state=reply[1][5], due_at=reply[1][2]))
            elif reply[0] == "refused" and reply[1] == "not_dead":
                answers.append(Changed(id=id, outcome="already fired"))
            else:
                answers.append(Changed(id=id, outcome="unknown"))
        return answers

    async def _replay_page(self, asked: LetterPage) -> LettersChanged:
        """Replay some of the letters that were dead when the first page was requested. A letter that dies again
        meanwhile is due later than that, and is left."""
        until = asked.until or now_ms()
        query = Query(asked.topic, 0, until, ["dead"], LIMIT_MAX, asked.after)
        found = await self._found(self._which(query))
        ids = [each.id for each in self._shown(found)]
        changed = await self._replay((asked.topic, ids)) if ids else []
        return LettersChanged(changed=changed, until=until, next=_next(found))

    async def _drop_page(self, asked: LetterPage) -> LettersChanged:
        """Drop some of the letters that were dead when the first page was requested. One that died later has a last
        answer of a later time, and is left."""
        until = asked.until or now_ms()
        query = Query(asked.topic, 0, until, ["dead"], LIMIT_MAX, asked.after)
        found = await self._found(self._which(query))
        numbers = [each[1][0] for each in found.found]
        answers = await self._link.ask("answers", numbers, list[LastAnswer])
        later = {each.number for each in answers if each.at > until}
        shown = zip(self._shown(found), numbers, strict=True)
        ids = [message.id for message, number in shown if number not in later]
        changed = await self._drop((asked.topic, ids)) if ids else []
        return LettersChanged(changed=changed, until=until, next=_next(found))

    async def _scrub(self, _: None) -> Scrubbed:
        return await self._link.ask("scrub", None, Scrubbed, timeout_s=SCRUB_S)

    def counters(self) -> list[Figure]:
        """Counters of jobs."""
        text = "Messages that jobs by tag counted, cancelled or moved"
        found = [(f'messages_by_tag{{verb="{verb}"}}', text, float(count)) for verb, count in self._by_tag.items()]
        return [*super().counters(), *found]

    def _which(self, query: Query) -> Which:
        number = self._topic(query.topic).number if query.topic else None
        limit = min(query.limit, LIMIT_MAX)
        return Which(number, query.begin, query.end, query.states, limit, _after(query.after), query.tag)

    def _shown(self, found: Found) -> list[Shown]:
        named = {topic.number: topic.name for topic in self.topics.all()}
        return [shown(named.get(each[2], str(each[2])), tuple(each)) for each in found.found]

    async def _found(self, which: Which) -> Found:
        return await self._link.ask("list", which, Found, timeout_s=60.0)


def _written(change: Callable[[], Topic]) -> Topic:
    try:
        return change()
    except TopicError as error:
        raise Refusal(error.code, str(error)) from None
    except OSError as error:
        raise Refusal("unavailable", f"cannot write the topics: {error.strerror}") from None


async def _entry(change: Awaitable[Entry]) -> Entry:
    try:
        return await change
    except RecurringError as error:
        raise Refusal(error.code, str(error)) from None
    except OSError as error:
        raise Refusal("unavailable", f"the recurring messages cannot be written: {error.strerror}") from None


def _next(found: Found) -> str:
    """The `after` of the next page; empty if there is none."""
    return "" if found.last is None else f"{found.last[0]}-{found.last[1]:x}"


def _after(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    at, dash, number = text.partition("-")
    try:
        after = int(at), int(number, 16)
    except ValueError:
        dash = ""
    if not dash or not all(0 <= each < 1 << 64 for each in after):
        raise Refusal("bad_request", f"invalid after {text!r:.80} (expected the `next` of a page)")
    return after


def build(spec: Spec, settings: MessagesSettings, context: Context) -> AdminService:
    """Make the admin. Raises `SpecError`."""
    return AdminService(spec, settings, context)
