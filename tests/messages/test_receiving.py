"""Receiving as a library and by nodes of the role: the same answers, and topics that stay up to date."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster_server.systems.messages.listener import Listener, Question
from muster_server.systems.messages.receive_service import questions
from muster_server.systems.messages.receiver import Unreachable
from muster_server.systems.messages.receiving import Following, Receivers, Receives, Receiving
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.schedule import EmbeddedSchedule, NewChange, NewMessage, Reply
from muster_server.systems.messages.service import answering
from muster_server.systems.messages.shapes import Change, Lease, LeaseEnd, Refused, Send, Sent
from muster_server.systems.messages.system import MessagesSettings
from muster_server.systems.messages.topics import Book, NewTopic, Topics, TopicsFile

TOKEN = b"token"


class Site:
    """A schedule, its center's port, the file of topics, and a node of the role `receive`."""

    def __init__(self, path: Path) -> None:
        self.path, self.counts = path, Counter[str]()
        self.file = TopicsFile(path, 10)
        self.file.open()
        self.file.create(NewTopic(name="orders", callback="https://shop.example/hook"))
        self.file.create(NewTopic(name="jobs", callback="pull:"))
        self.schedule = EmbeddedSchedule(path / "schedule", lambda *_: None, segment_bytes=8 << 20)
        self.center = Listener(("127.0.0.1", 0), TOKEN, self._questions())
        self.library = self.receiving(Topics(path))
        self.node = Listener(("127.0.0.1", 0), TOKEN, questions(self.receiving(Topics(path))))

    def receiving(self, topics: Topics) -> Receiving:
        settings = MessagesSettings(
            folder=str(self.path), topics=str(self.path), instance="a", targets=("callback", "pull"), options={}
        )
        return Receiving(settings, topics, lambda: [self.center.address], TOKEN, self._count)

    def _count(self, name: str, count: int) -> None:
        self.counts[name] += count

    def _questions(self) -> dict[str, Question]:
        async def insert(messages: list[NewMessage]) -> list[Reply]:
            return await self.schedule.insert(messages)

        async def change(asked: tuple[int, list[NewChange]]) -> list[Reply]:
            return await self.schedule.change(asked[1])

        async def lease(_: Any) -> list[Any]:
            return []

        return {
            "insert": answering(insert, list[NewMessage]),
            "change": answering(change, tuple[int, list[NewChange]]),
            "get": answering(self.schedule.get, list[int]),
            "lease": Question(tuple[int, int, float, float], answer=lease, waits=True),
        }


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    await made.schedule.open()
    await made.center.start()
    await made.node.start()
    yield made
    await made.node.end()
    await made.center.end()
    await made.schedule.close()


@pytest.fixture(params=["library", "node"])
async def receives(site: Site, request: pytest.FixtureRequest) -> AsyncIterator[Receives]:
    made: Receives = site.library if request.param == "library" else Receivers(lambda: [site.node.address], TOKEN)
    yield made
    await made.close()


async def test_messages_are_sent_changed_and_shown(site: Site, receives: Receives) -> None:
    sends = [Send(body=b"1", id="a", in_ms=60_000), Send(body=b"2", id="b", in_ms=-1)]
    sent, refused = await receives.send("orders", sends)
    assert isinstance(sent, Sent)
    assert isinstance(refused, Refused)
    (changed,) = await receives.change("orders", [Change(id="a", verb="cancel")])
    assert not isinstance(changed, Refused)
    assert changed.outcome == "done"
    shown, nothing = await receives.show("orders", ["a", "none"])
    assert shown is not None
    assert (shown.state, shown.body, nothing) == ("cancelled", b"1", None)
    assert site.counts == {"messages_received": 1, "messages_refused": 1, "messages_changes": 1}


async def test_leases_are_asked_and_ended(receives: Receives) -> None:
    assert await receives.lease(Lease("jobs", 1, 0.0, 30.0)) == []
    with pytest.raises(Refusal) as refused:
        await receives.end_leases("jobs", [LeaseEnd(lease="x" * 20, verb="done")])
    assert refused.value.code == "bad_body"


async def test_a_topic_is_known_at_once_and_another_one_is_not_found(site: Site, receives: Receives) -> None:
    site.file.create(NewTopic(name="bills", callback="https://shop.example/hook"))
    (sent,) = await receives.send("bills", [Send(body=b"1")])
    assert isinstance(sent, Sent)
    for asking in (receives.show("none", ["a"]), receives.lease(Lease("none", 1, 0.0, 30.0))):
        with pytest.raises(Refusal) as refused:
            await asking
        assert refused.value.code == "not_found"


async def test_a_center_that_is_away_is_named(site: Site, receives: Receives) -> None:
    await site.center.end()
    with pytest.raises(Refusal, match=r"center at .* repeat it with the same ids") as refused:
        await receives.send("orders", [Send(body=b"1", id="a")])
    assert refused.value.code == "unavailable"


async def test_a_process_without_topics_refuses_for_now(site: Site, tmp_path: Path) -> None:
    receiving = site.receiving(Topics(tmp_path / "elsewhere"))
    with pytest.raises(Refusal, match="not known here yet") as refused:
        await receiving.send("orders", [Send(body=b"1")])
    assert refused.value.code == "unavailable"


async def test_topics_of_another_machine_come_from_the_node_that_has_their_file(site: Site, tmp_path: Path) -> None:
    asked: list[int] = []
    away = True

    async def ask(version: int) -> Book | None:
        asked.append(version)
        if away:
            raise Unreachable
        return site.file.newer(version)

    topics = Topics(tmp_path / "elsewhere")
    following = Following(topics, ask)
    assert not await following.changed()
    away = False
    assert await following.changed()
    assert topics.named("orders") == site.file.named("orders")
    assert not await following.changed()
    assert asked == [0, 0, site.file.version]
    again = Topics(tmp_path / "elsewhere")
    Following(again, ask)
    assert again.known, "the last topics are there after a restart"
    here = Topics(tmp_path)
    assert not await Following(here, ask).changed()
    assert here.named("orders") is not None
    assert len(asked) == 3
