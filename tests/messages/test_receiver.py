"""What is accepted and how it is told, over a real schedule in a folder."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster_server.systems.messages.receiver import NoTopic, Receiver
from muster_server.systems.messages.schedule import EmbeddedSchedule, NewChange, NewMessage, Reply
from muster_server.systems.messages.shapes import Change, Changed, Numbers, Refused, Send, Sent
from muster_server.systems.messages.targets import ALWAYS, TargetError, accepted
from muster_server.systems.messages.topics import NewTopic, TopicError, Topics, TopicsFile

NOW = 4_000_000_000_000
DAY_MS = 86_400_000


class Direct:
    """A `Center` without a way to it."""

    def __init__(self, schedule: EmbeddedSchedule) -> None:
        self._schedule = schedule

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        return await self._schedule.insert(messages)

    async def change(self, topic: int, changes: Sequence[NewChange]) -> list[Reply]:
        return await self._schedule.change(changes)

    async def get(self, ids: Sequence[int]) -> list[Reply]:
        return await self._schedule.get(ids)

    async def answers(self, ids: Sequence[int]) -> dict[int, bytes]:
        return {}


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    topics = TopicsFile(tmp_path, 10)
    topics.open()
    for name in ("orders", "bills"):
        topics.create(NewTopic(name=name, callback="https://shop.example/hook"))
    schedule = EmbeddedSchedule(tmp_path / "schedule", lambda *_: None, segment_bytes=8 << 20)
    await schedule.open()
    yield Receiver(topics, Direct(schedule), body_bytes_max=100, delay_days_max=3_653, wall=lambda: NOW)
    await schedule.close()


async def one(receiver: Receiver, topic: str = "orders", **fields: Any) -> Sent | Refused:
    return (await receiver.send(topic, [Send(**{"body": b"x"} | fields)]))[0]


async def test_the_same_id_is_the_same_message_and_another_topic_s_is_not(receiver: Receiver) -> None:
    first = await one(receiver, id="a", in_ms=1_000)
    again = await one(receiver, id="a", in_ms=9_000)
    assert (first, again) == (Sent(id="a", due_at=NOW + 1_000), Sent(id="a", due_at=NOW + 1_000, duplicate=True))
    assert await one(receiver, "bills", id="a", in_ms=7) == Sent(id="a", due_at=NOW + 7)
    other = await one(receiver, id="a", body=b"other", in_ms=1_000)
    assert isinstance(other, Refused)
    assert other.code == "conflict"


async def test_a_window_moves_a_message_by_its_id_alone(receiver: Receiver) -> None:
    sent = [await one(receiver, id=f"m-{number}", in_ms=0, window_ms=1_000) for number in range(200)]
    moved = [each.due_at - NOW for each in sent if isinstance(each, Sent)]
    assert all(0 <= each <= 1_000 for each in moved)
    assert max(moved) - min(moved) > 500
    again = [await one(receiver, id=f"m-{number}", in_ms=0, window_ms=1_000) for number in range(200)]
    assert [each.due_at - NOW for each in again if isinstance(each, Sent)] == moved


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"in_ms": -1}, "bad_request"),
        ({"in_ms": 3_653 * DAY_MS + 1}, "bad_request"),
        ({"at": -1}, "bad_request"),
        ({"at": NOW + 3_653 * DAY_MS + 1}, "bad_request"),
        ({"in_ms": 1, "at": NOW}, "bad_request"),
        ({"in_ms": 10, "expires_at": NOW + 10}, "bad_request"),
        ({"target": "ftp://shop.example"}, "bad_request"),
        ({"target": "user:7"}, "bad_request"),
        ({"body": b"x" * 101}, "too_long"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_others_of_its_batch_are_not(
    receiver: Receiver, fields: dict[str, Any], code: str
) -> None:
    good = Send(body=b"x", id="good")
    before, bad, after = await receiver.send("orders", [good, Send(**{"body": b"x"} | fields), Send(body=b"y")])
    assert isinstance(before, Sent)
    assert isinstance(after, Sent)
    assert isinstance(bad, Refused)
    assert bad.code == code


async def test_a_body_that_its_target_does_not_take_is_refused_at_once(tmp_path: Path) -> None:
    topics = TopicsFile(tmp_path, 10, ALWAYS | {"user"})
    topics.open()
    topics.create(NewTopic(name="alerts", callback="user:7"))
    topics.create(NewTopic(name="news", callback="room:sports"))
    schedule = EmbeddedSchedule(tmp_path / "schedule", lambda *_: None, segment_bytes=8 << 20)
    await schedule.open()
    limits: dict[str, Any] = {"body_bytes_max": 100_000, "delay_days_max": 1, "wall": lambda: NOW}
    receiver = Receiver(topics, Direct(schedule), kinds=ALWAYS | {"user"}, **limits)
    for topic, most in (("alerts", 960), ("news", 65_536)):
        assert isinstance(await one(receiver, topic, body=b"x" * most), Sent)
        refused = await one(receiver, topic, body=b"x" * (most + 1))
        assert isinstance(refused, Refused)
        assert (refused.code, f"limit {most}" in refused.detail) == ("too_long", True)
        assert isinstance(await one(receiver, topic, body=b"x" * (most + 1), target="https://shop.example/"), Sent)
    without = await one(Receiver(topics, Direct(schedule), **limits), "alerts")
    assert isinstance(without, Refused), "presence does not run any more"
    assert (without.code, "presence" in without.detail) == ("bad_request", True)
    await schedule.close()


async def test_a_delay_of_ten_years_is_taken(receiver: Receiver) -> None:
    sent = await one(receiver, in_ms=3_653 * DAY_MS)
    assert isinstance(sent, Sent)


async def test_changes_meet_their_message_or_wait_for_it(receiver: Receiver) -> None:
    await one(receiver, id="a", in_ms=60_000)

    async def changed(id: str, verb: Any, **fields: Any) -> Changed | Refused:
        return (await receiver.change("orders", [Change(id=id, verb=verb, **fields)]))[0]

    assert await changed("a", "postpone", by_ms=5) == Changed(
        id="a", outcome="done", state="scheduled", due_at=NOW + 60_005
    )
    assert await changed("a", "advance", by_ms=10) == Changed(
        id="a", outcome="done", state="scheduled", due_at=NOW + 59_995
    )
    assert await changed("a", "advance", at=NOW) == Changed(id="a", outcome="done", state="scheduled", due_at=NOW)
    assert isinstance(await changed("a", "postpone"), Refused)
    assert isinstance(await changed("a", "postpone", at=NOW, by_ms=1), Refused)
    assert (await changed("a", "cancel")) == Changed(id="a", outcome="done", state="cancelled", due_at=NOW)
    assert (await changed("a", "postpone", by_ms=1)) == Changed(id="a", outcome="cancelled")
    assert (await changed("b", "postpone", by_ms=500)) == Changed(id="b", outcome="unknown")
    assert await one(receiver, id="b", in_ms=1_000) == Sent(id="b", due_at=NOW + 1_500)


async def test_a_move_the_wrong_way_is_refused_and_says_where_the_message_is(receiver: Receiver) -> None:
    await one(receiver, id="a", at=NOW + 60_000)
    changes = [
        Change(id="a", verb="postpone", at=NOW + 59_999),
        Change(id="a", verb="advance", at=NOW + 60_001),
        Change(id="a", verb="postpone", at=NOW + 70_000),
        Change(id="a", verb="advance", at=NOW + 65_000),
    ]
    sooner, later, postponed, advanced = await receiver.change("orders", changes)
    assert isinstance(sooner, Refused)
    assert isinstance(later, Refused)
    assert (sooner.code, later.code) == ("conflict", "conflict")
    assert "2096-10-02T07:07:40.000+00:00" in sooner.detail
    assert "use advance to move it to an earlier time" in sooner.detail
    assert "use postpone to move it to a later time" in later.detail
    assert isinstance(postponed, Changed)
    assert isinstance(advanced, Changed)
    assert advanced.due_at == NOW + 65_000


async def test_a_check_back_is_registered_for_a_message_that_can_be_sent(tmp_path: Path) -> None:
    topics = TopicsFile(tmp_path, 10)
    topics.open()
    topics.create(NewTopic(name="checks", callback="https://shop.example/checks"))
    topics.create(NewTopic(name="news", callback="room:sports"))
    schedule = EmbeddedSchedule(tmp_path / "schedule", lambda *_: None, segment_bytes=8 << 20)
    await schedule.open()
    receiver = Receiver(topics, Direct(schedule), body_bytes_max=100_000, delay_days_max=1, wall=lambda: NOW)
    head = b'{"topic": "news", "type": "a/b", "in_s": null}\n'
    assert isinstance(await one(receiver, "checks", body=head + b"x" * 65_536, for_topic="news"), Sent)
    refused = [
        await one(receiver, "checks", body=head + b"x", for_topic="nosuch"),
        await one(receiver, "checks", body=head + b"x", for_topic="checks"),
        await one(receiver, "checks", body=head + b"x" * 65_537, for_topic="news"),
    ]
    assert [each.code for each in refused if isinstance(each, Refused)] == ["not_found", "bad_request", "too_long"]
    await schedule.close()


async def test_an_unknown_topic_is_told_apart(receiver: Receiver) -> None:
    with pytest.raises(NoTopic):
        await one(receiver, "none")
    assert await receiver.show("orders", ["nobody"]) == [None]


@pytest.mark.parametrize(("key", "topic"), [(b"k" * 32, 1), (b"l" * 32, 1), (b"k" * 32, 2), (b"k", (1 << 32) - 1)])
def test_numbers_of_ids_are_keyed_hashes(key: bytes, topic: int) -> None:
    ids = ["a", "b" * 128, ""]
    hashes = [hashlib.blake2b(topic.to_bytes(4, "little") + id.encode(), digest_size=8, key=key) for id in ids]
    assert Numbers(key, topic).of(ids) == [int.from_bytes(each.digest(), "little") for each in hashes]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "https://",
        "https://user:word@shop.example/",
        "http://a b/",
        "room:",
        "user:7",
        "kafka:t",
        "https://x\n",
    ],
)
def test_a_text_that_names_no_target_that_is_reached_is_refused(text: str) -> None:
    with pytest.raises(TargetError):
        accepted(text, ALWAYS)


def test_topics_are_written_whole_and_found_by_others(tmp_path: Path) -> None:
    file, other = TopicsFile(tmp_path, 2), Topics(tmp_path)
    file.open()
    made = file.create(NewTopic(name="orders", callback="room:sports:final"))
    assert file.create(NewTopic(name="orders", callback="room:sports:final")) == made
    assert other.named("orders") == made
    with pytest.raises(TopicError, match="other settings"):
        file.create(NewTopic(name="orders", callback="room:other"))
    second = file.create(NewTopic(name="second", callback="room:x"))
    with pytest.raises(TopicError, match="topics_max"):
        file.create(NewTopic(name="third", callback="room:x"))
    assert file.remove("second") == second
    assert file.create(NewTopic(name="second", callback="room:x")).number > second.number
    assert (tmp_path / "topics.json").stat().st_mode & 0o077 == 0
    (tmp_path / "topics.json").write_text("{")
    other.look()
    assert other.named("orders") == made, "what was known stays"


def test_topics_reach_a_node_without_the_file_and_its_next_start(tmp_path: Path) -> None:
    file, far = TopicsFile(tmp_path / "here", 2), Topics(tmp_path / "there")
    file.open()
    made = file.create(NewTopic(name="orders", callback="room:x"))
    book = file.newer(far.version)
    assert book is not None
    assert far.tell(book)
    assert not far.tell(book)
    assert file.newer(far.version) is None
    again = Topics(tmp_path / "there")
    again.recall()
    assert again.named("orders") == made


async def test_messages_of_a_key_that_are_due_at_once_keep_their_order(tmp_path: Path) -> None:
    """The center may not know a topic yet that was made just now."""
    topics = TopicsFile(tmp_path, 10)
    topics.open()
    topics.create(NewTopic(name="orders", callback="https://shop.example/hook", per_key=1))
    schedule = EmbeddedSchedule(tmp_path / "schedule", lambda *_: None, segment_bytes=8 << 20)
    await schedule.open()
    receiver = Receiver(topics, Direct(schedule), body_bytes_max=100, delay_days_max=1, wall=lambda: NOW)
    sends = [Send(body=b"x", key=key) for key in ("a", "a", "b", "", "", "a")]
    sent = [each for _ in range(2) for each in await receiver.send("orders", sends)]
    assert [each.due_at - NOW for each in sent if isinstance(each, Sent)] == [0, 1, 0, 0, 0, 2, 3, 4, 1, 0, 0, 5]
    long = await one(receiver, key="k" * 3 + "\n")
    assert isinstance(long, Refused)
    assert "not printable" in long.detail
    await schedule.close()
