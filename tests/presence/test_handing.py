"""Messages of users that no device has are handed on once taken, with an id of their own, and bounded in number and time."""

import asyncio
import json
from collections import deque
from typing import Any, cast

import pytest
import structlog

from muster_server import _engines
from muster_server.plane.service import Context
from muster_server.plane.ways import NotTaken
from muster_server.systems.presence import forms, handing
from muster_server.systems.presence.handing import HandingOn
from tests.waiting import until

Put = tuple[str, str, dict[str, Any], str]


class Way:
    """Takes messages, unless it fails."""

    def __init__(self) -> None:
        self.put_in: list[Put] = []
        self.fails: deque[NotTaken] = deque()
        self.held: asyncio.Event | None = None
        self.now = self.most = 0
        self.closed = False

    async def put(self, place: str, id: str, body: bytes, kind: str) -> None:
        """As `plane.ways.Way`."""
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.held is not None:
                await self.held.wait()
            if self.fails:
                raise self.fails.popleft()
            self.put_in.append((place, id, json.loads(body), kind))
        finally:
            self.now -= 1

    async def close(self) -> None:
        """As `plane.ways.Way`."""
        self.closed = True


class Queue:
    """As `_engines.Undelivered`."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, int, int, str, bytes]] = deque()

    def take(self, most: int) -> list[tuple[int, int, int, str, bytes]]:
        """As `handing.Queue`."""
        return [self.waiting.popleft() for _ in range(min(most, len(self.waiting)))]


class World:
    """Messages that were handed on."""

    def __init__(self, where: str) -> None:
        self.way, self.queue = Way(), Queue()
        context = Context(structlog.get_logger(), lambda: None, lambda: None)
        self.handing = HandingOn(context, self.way, where, self.queue)
        self._running = asyncio.create_task(self.handing.run())

    async def close(self) -> None:
        """End it."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.handing.close()
        assert self.way.closed


async def test_a_message_goes_into_a_topic_as_a_callback_has_it() -> None:
    world = World("topic:push")
    world.queue.waiting += [(9, 255, 7, "not_online", b"your move"), (9, 256, 1 << 63, "expired", b"\xff")]
    await until(lambda: len(world.way.put_in) == 2)
    (place, id, body, kind), (_, _, other, _) = world.way.put_in
    assert (place, id, kind) == ("push", "9-ff-7", "application/json")
    assert body.pop("at") > 0
    assert body == {"user": "7", "sender": "9", "data": "your move", "encoding": "utf-8", "outcome": "not_online"}
    assert (other["user"], other["data"], other["encoding"]) == (str(1 << 63), "/w==", "base64")
    await world.close()
    assert (world.handing.kept, world.handing.lost) == (2, 0)


async def test_a_message_goes_into_the_inbox_of_its_user() -> None:
    world = World("inbox:message")
    world.queue.waiting.append((9, 1, 7, "not_online", b"your move"))
    await until(lambda: world.way.put_in)
    assert world.way.put_in[0][:3] == ("7", "9-1-7", {"kind": "message", "data": {"text": "your move"}, "actor": "9"})
    await world.close()


async def test_what_is_not_taken_is_tried_again_and_what_lasts_is_lost() -> None:
    world = World("topic:push")
    world.way.fails += [NotTaken("away"), NotTaken("away"), NotTaken("no such topic", lasting=True)]
    world.queue.waiting.append((9, 1, 7, "not_online", b"x"))
    await until(lambda: world.handing.lost == 1)
    world.way.fails.append(NotTaken("away"))
    world.queue.waiting.append((9, 2, 7, "not_online", b"y"))
    await until(lambda: world.handing.kept == 1)
    assert [id for _, id, _, _ in world.way.put_in] == ["9-2-7"]
    await world.close()


async def test_only_some_are_under_way_at_once_and_a_node_that_ends_waits_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handing, "END_S", 0.05)
    world = World("topic:push")
    world.way.held = asyncio.Event()
    world.queue.waiting += [(9, number, 7, "not_online", b"x") for number in range(200)]
    await until(lambda: world.way.now == handing.AT_ONCE)
    assert len(world.queue.waiting) == 200 - handing.AT_ONCE
    world.way.held.set()
    await until(lambda: world.handing.kept == 200)
    assert world.way.most == handing.AT_ONCE
    world.way.held.clear()
    world.queue.waiting.append((9, 999, 7, "not_online", b"x"))
    await until(lambda: world.way.now == 1)
    await world.close()
    assert world.way.now == 0


async def test_a_message_that_nothing_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing, "GIVE_UP_S", 0.05)
    world = World("topic:push")
    world.way.fails += [NotTaken("away")] * 100
    world.queue.waiting.append((9, 1, 7, "not_online", b"x"))
    await until(lambda: world.handing.lost == 1)
    await world.close()


def test_an_empty_queue_of_an_engine_gives_nothing() -> None:
    queue = _engines.Undelivered()
    assert queue.take(10) == []
    assert cast(handing.Queue, queue).take(0) == []


def test_the_outcome_that_leaves_most_open_is_told() -> None:
    assert forms.worst([]) == "not_online"
    assert forms.worst(["not_online", "expired"]) == "expired"
    assert forms.worst(["expired", "unknown", "not_online"]) == "unknown"
