"""Questions between nodes of the system, over loopback: answers, refusals, streams, and what an end that fails means."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from muster_server.systems.messages.link import Link, Merged
from muster_server.systems.messages.listener import Listener, Question
from muster_server.systems.messages.receiver import Unreachable
from muster_server.systems.messages.refusal import Refusal
from tests.waiting import PATIENT_S, until

TOKEN = b"token"
PIECE = b"x" * 100_000


class Node:
    """A node that answers."""

    def __init__(self) -> None:
        self.hold = asyncio.Event()
        self.begun, self.cancelled = list[str](), list[str]()
        self.carried_out = 0
        self.ended = asyncio.Event()
        questions = {
            "double": Question(list[int], answer=self.double),
            "refuse": Question(int, answer=self.refuse),
            "wait": Question(int, answer=self.wait),
            "lease": Question(int, answer=self.lease, waits=True),
            "count": Question(int, pieces=self.count),
        }
        self.listener = Listener(("127.0.0.1", 0), TOKEN, questions)

    async def double(self, numbers: list[int]) -> list[int]:
        return [2 * each for each in numbers]

    async def refuse(self, number: int) -> None:
        raise Refusal("conflict", f"not {number}")

    async def wait(self, number: int) -> int:
        await self._held("wait")
        self.carried_out += 1
        return number

    async def lease(self, number: int) -> int:
        await self._held("lease")
        return number

    async def _held(self, name: str) -> None:
        self.begun.append(name)
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise

    async def count(self, number: int) -> AsyncIterator[list[Any]]:
        try:
            for each in range(number):
                yield [each, PIECE]
            await self.hold.wait()
        finally:
            self.ended.set()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    await made.listener.start()
    yield made
    made.hold.set()
    await made.listener.end()


@pytest.fixture
async def link(node: Node) -> AsyncIterator[Link]:
    made = Link("center", lambda: [node.listener.address], TOKEN)
    yield made
    await made.close()


async def test_questions_are_answered_over_connections_that_are_kept(node: Node, link: Link) -> None:
    for _ in range(3):
        assert await link.ask("double", [1, 2], list[int]) == [2, 4]
    answers = await asyncio.gather(*(link.ask("double", list(range(each * 3_000)), list[int]) for each in range(20)))
    assert [len(each) for each in answers] == [each * 3_000 for each in range(20)]
    assert node.listener.asked == 23


async def test_a_refusal_comes_as_it_was_said_and_the_connection_serves_on(link: Link) -> None:
    with pytest.raises(Refusal, match="not 7") as refused:
        await link.ask("refuse", 7, int)
    assert refused.value.code == "conflict"
    assert await link.ask("double", [1], list[int]) == [2]


@pytest.mark.parametrize(("question", "body"), [("double", "no"), ("halve", [2])])
async def test_a_body_of_another_shape_and_an_unknown_request_are_bad_requests(
    node: Node, link: Link, question: str, body: Any
) -> None:
    with pytest.raises(Refusal) as refused:
        await link.ask(question, body, list[int])
    assert refused.value.code == "bad_request"
    assert node.listener.refused == 1
    assert await link.ask("double", [1], list[int]) == [2]


async def test_the_next_node_is_asked_where_one_does_not_listen(node: Node) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = taken.getsockname()[:2]
        link = Link("center", lambda: [nobody, node.listener.address], TOKEN)
        assert await link.ask("double", [4], list[int]) == [8]
        await link.close()
        alone = Link("center", lambda: [nobody], TOKEN)
        with pytest.raises(Unreachable, match="center at 127"):
            await alone.ask("double", [4], list[int])
        await alone.close()
    with pytest.raises(Unreachable, match="no center is known"):
        await Link("center", list, TOKEN).ask("double", [4], list[int])


async def test_an_answer_that_does_not_come_in_time_is_not_taken_for_the_next_one(node: Node, link: Link) -> None:
    with pytest.raises(Unreachable, match="did not reply within"):
        await link.ask("wait", 1, int, timeout_s=0.05)
    waiting = asyncio.create_task(link.ask("wait", 2, int))
    await asyncio.sleep(0)
    node.hold.set()
    assert await waiting == 2


async def test_a_request_is_carried_out_though_its_asker_is_gone_and_one_that_waits_is_cancelled(
    node: Node, link: Link
) -> None:
    for question in ("wait", "lease"):
        asking = asyncio.create_task(link.ask(question, 1, int))
        await until(lambda question=question: question in node.begun)  # type: ignore[misc]
        asking.cancel()
    await until(lambda: "lease" in node.cancelled)
    node.hold.set()
    await until(lambda: node.carried_out)
    assert node.cancelled == ["lease"]


async def test_a_node_that_ends_answers_what_it_was_asked_and_the_next_one_gets_the_rest(node: Node) -> None:
    other = Node()
    await other.listener.start()
    link = Link("center", lambda: [node.listener.address, other.listener.address], TOKEN)
    asking = asyncio.create_task(link.ask("wait", 1, int))
    await until(lambda: "wait" in node.begun)
    ending = asyncio.create_task(node.listener.end())
    await asyncio.sleep(0)
    assert await link.ask("double", [4], list[int]) == [8]
    assert (node.listener.asked, other.listener.asked) == (1, 1)
    node.hold.set()
    assert await asking == 1
    await ending
    await link.close()
    await other.listener.end()


async def test_a_connection_to_a_node_that_is_no_longer_listed_ends_with_its_last_answer(node: Node) -> None:
    other = Node()
    await other.listener.start()
    listed = [node.listener.address]
    link = Link("center", lambda: listed, TOKEN)
    asking = asyncio.create_task(link.ask("wait", 1, int))
    await until(lambda: "wait" in node.begun)
    listed[:] = [other.listener.address]
    assert await link.ask("double", [4], list[int]) == [8]
    node.hold.set()
    assert await asking == 1
    await link.close()
    await other.listener.end()


async def test_a_node_that_ends_in_the_middle_may_have_carried_the_request_out(node: Node) -> None:
    """So the next one is not asked."""
    other = Node()
    await other.listener.start()
    link = Link("center", lambda: [node.listener.address, other.listener.address], TOKEN)
    asking = asyncio.create_task(link.ask("wait", 1, int))
    await until(lambda: "wait" in node.begun)
    await node.listener._server.stop()
    with pytest.raises(Unreachable, match="center at 127"):
        await asking
    assert other.listener.asked == 0
    await link.close()
    await other.listener.end()


async def test_a_stream_gives_its_pieces_and_ends_at_either_end(node: Node, link: Link) -> None:
    seen: list[int] = []
    async with contextlib.aclosing(link.stream("count", 20, msgspec.Raw)) as pieces:
        async for piece in pieces:
            number, padding = msgspec.msgpack.decode(piece)
            assert padding == PIECE
            seen.append(number)
            if number == 19:
                break
    assert seen == list(range(20))
    async with asyncio.timeout(PATIENT_S):
        await node.ended.wait()  # the node notices that nobody reads any more
    node.hold.set()
    assert [number async for number, _ in link.stream("count", 2, list[Any])] == [0, 1]


async def test_what_is_asked_at_the_same_time_goes_together() -> None:
    asked: list[int] = []

    async def ask(entries: Any) -> list[Any]:
        asked.append(len(entries))
        await asyncio.sleep(0)
        return [each + 1 for each in entries]

    merged = Merged(ask)
    answers = await asyncio.gather(*(merged([each, each]) for each in range(10)))
    assert answers == [[each + 1] * 2 for each in range(10)]
    assert sum(asked) == 20
    assert len(asked) < 10
