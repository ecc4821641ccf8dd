"""`muster.inbox` against a real node and face: each call of both clients, and `client.inbox`."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import muster
import muster.testing
from muster.errors import Invalid, Refused, Unavailable
from muster.inbox import AsyncInbox, Choice, Inbox, Noted
from tests.http.conftest import Beside
from tests.http.test_routes import token
from tests.inbox.conftest import beside, eventually, rig, rigged
from tests.waiting import PATIENT_S

__all__ = ["beside", "rig", "rigged"]
ANN = token(7, "read")
BOTH = ("notify:*", "broadcast:*", "inbox:*")


@pytest.fixture
async def address() -> AsyncIterator[muster.testing.Instance]:
    """An instance that knows user 7."""
    async with muster.testing.instance(tokens={b"shared": 1, ANN.encode(): 7}) as running:
        yield running


async def test_each_call_of_the_async_client(beside: Beside) -> None:
    async with AsyncInbox(beside.server.url, key=beside.key(*BOTH)) as program:
        assert await program.notify([7, 8], "like", {"song": 3}, actor="bo", id="x") == [
            Noted("7", 1, "new"),
            Noted("8", 1, "new"),
        ]
        assert await program.notify(7, "like", {"song": 4}, group="g") == [Noted("7", 2, "new")]
        await program.follow("field:corn", 7)
        told = await program.broadcast("field:corn", "news", "hello")
        assert (told.id, told.outcome) == ("b1", "new")
        await program.unfollow("field:corn", 8)
        async with AsyncInbox(beside.server.url, token=ANN) as ann:
            page = await ann.page(after="0", limit=2)
            assert [(each.id, each.cursor, each.data) for each in page.entries] == [
                ("1", "1-0", {"song": 3}),
                ("2", "2-0", {"song": 4}),
            ]
            rest = await ann.page(after=page.after)
            assert [(each.id, each.audience, each.cursor) for each in rest.entries] == [("b1", "field:corn", "2-1")]
            assert (await ann.counts()).unread == {"like": 2, "news": 1}
            assert (await ann.seen(to=rest.after)).unseen == {}
            assert (await ann.read(entries=["b1"])).unread == {"like": 2}
            assert (await ann.read(to=rest.after, kind="like")).unread == {}
            assert await ann.choose({"like": Choice(push=False, mail="daily")}) == {
                "like": Choice(push=False, mail="daily")
            }
            assert await ann.settings() == await program.settings(7)
            with pytest.raises(Refused, match="own inbox"):
                await ann.page(8)
        with pytest.raises(Refused):
            await program.notify("7", "Like")
    with pytest.raises(Invalid):
        AsyncInbox(beside.server.url)


async def test_each_call_of_the_threaded_client(beside: Beside) -> None:
    key = beside.key(*BOTH)

    def work() -> Any:
        with Inbox(beside.server.url, key=key) as program:
            assert program.notify(7, "like", 1, id="x")[0].outcome == "new"
            assert program.notify(7, "like", 1, id="x")[0].outcome == "same"
            program.follow("a", 7)
            assert program.broadcast("a", "news", until=4_000_000_000).until == 4_000_000_000
            program.unfollow("a", 7)
            assert [each.id for each in program.page(7).entries] == ["1"]
            assert program.counts(7).unread == {"like": 1}
            assert program.seen(7, to="1").unseen == {}
            assert program.read(7, to="1").unread == {}
            assert program.choose({"like": Choice(inbox=False)}, 7) == program.settings(7)
            with pytest.raises(Refused):
                program.page(7, after="x")
        with pytest.raises(Unavailable), Inbox("http://127.0.0.1:1", key="k") as nobody:
            nobody.counts(7)

    await asyncio.to_thread(work)


async def test_a_client_iterates_over_its_inbox_and_takes_up_where_it_stopped(
    beside: Beside, address: muster.testing.Instance
) -> None:
    async with AsyncInbox(beside.server.url, key=beside.key(*BOTH)) as program:
        await program.notify(7, "like", 1)
        where = muster.Address(address.gateways, address.proxies, ANN.encode())
        async with muster.connect(where, proxies=[]) as client:
            entries = client.inbox(beside.server.url, poll=0.05)
            async with asyncio.timeout(PATIENT_S):
                first = await anext(entries)
                await program.notify(7, "like", 2)
                second = await anext(entries)
                await entries.aclose()
                assert (first.data, second.data) == (1, 2)
                await program.broadcast("all", "news", 3)
                again = client.inbox(beside.server.url, after=second.cursor)
                assert (await anext(again)).data == 3
                await again.aclose()
    assert threading.active_count() < 20


async def test_a_hint_wakes_the_iteration_and_other_messages_stay_for_their_reader(
    beside: Beside, address: muster.testing.Instance
) -> None:
    async with AsyncInbox(beside.server.url, key=beside.key(*BOTH)) as program:
        where = muster.Address(address.gateways, address.proxies, ANN.encode())
        async with muster.connect(where, proxies=[]) as client:
            received = [(1, 1, b"hello"), (1, 2, b'{"inbox":{"seq":1,"unread":4,"kind":"like","begin":"1"}}')]
            entries = client.inbox(beside.server.url, poll=3_600.0)
            reading = asyncio.create_task(anext(entries))
            await eventually(lambda: asyncio.sleep(0, client._inbox_readers == 1))
            await program.notify(7, "like", 1)

            class Engine:
                def __getattr__(self, name: str) -> Any:
                    return getattr(engine, name)

                def received(self, limit: int) -> list[Any]:
                    return [received.pop(0) for _ in range(min(limit, len(received)))]

            engine, client.engine = client.engine, Engine()  # type: ignore[assignment]
            assert client.inbox_unread is None
            client._on_received()
            async with asyncio.timeout(PATIENT_S):
                assert (await reading).data == 1
                assert client.inbox_unread == 4
                assert (await anext(client.direct())).data == b"hello"
            client.engine = engine
            await entries.aclose()
