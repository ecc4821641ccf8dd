"""Event streams over a real instance: order, resuming, many readers, readers that do not read, and the end."""

import asyncio
import contextlib
import time

import muster
import muster.testing
from muster_server.plane.auth import mint
from muster_server.plane.trust import Trust
from muster_server.systems.http import keys
from tests.http.conftest import SECRET, Beside, Make, eventually
from tests.http.streams import stream
from tests.waiting import PATIENT_S

PATH = "/api/v1/rooms/sports:final/messages"
ROOM = "sports:final"


def gauge(beside: Beside, name: str) -> float:
    """What a gauge says now."""
    return next(value for called, _, value in beside.server.counts.gauges() if called == name)


async def test_a_stream_carries_what_comes_in_order(make: Make, address: muster.testing.Instance) -> None:
    beside = await make()
    async with (
        muster.connect(address) as publisher,
        stream(beside.server.address, PATH, beside.key("read:*")) as reader,
    ):
        for at in range(50):
            publisher.publish_nowait(ROOM, str(at).encode()) or await publisher.publish(ROOM, str(at).encode())
        events = await reader.messages(50)
    assert [event.data["data"] for event in events] == [str(at) for at in range(50)]
    assert all(event.id == event.data["position"] for event in events)


async def test_a_stream_carries_headers(make: Make, address: muster.testing.Instance) -> None:
    beside = await make()
    async with (
        muster.connect(address) as publisher,
        stream(beside.server.address, PATH, beside.key("read:*")) as reader,
    ):
        await publisher.publish(ROOM, b"1", headers={"kind": "goal"})
        await publisher.publish(ROOM, b"2")
        events = await reader.messages(2)
    assert [event.data.get("headers") for event in events] == [{"kind": "goal"}, None]


async def test_a_stream_with_where_leaves_messages_out(make: Make, address: muster.testing.Instance) -> None:
    beside = await make()
    key = beside.key("read:*", "history:*")
    where = f"{PATH}?where=pair=EUR,USD&where=kind%3Dtrade"
    async with (
        muster.connect(address) as publisher,
        stream(beside.server.address, where, key) as reader,
        stream(beside.server.address, PATH, key) as other,
    ):
        for at in range(40):
            headers = {"pair": ("EUR", "JPY", "USD", "EUR")[at % 4], "kind": "offer" if at % 4 == 3 else "trade"}
            await publisher.publish(ROOM, str(at).encode(), headers=headers)
        wanted = [str(at) for at in range(0, 40, 2)]
        events = await reader.messages(20)
        assert [event.data["data"] for event in events] == wanted
        assert len(await other.messages(40)) == 40
        # After an event it goes on with the same words, and history is looked through.
        last = {"last-event-id": events[9].id}
        async with stream(beside.server.address, where, key, last) as back:
            assert [event.data["data"] for event in await back.messages(10)] == wanted[10:]
        async with stream(beside.server.address, f"{where}&history=10", key) as recent:
            assert [event.data["data"] for event in await recent.messages(5)] == wanted[15:]
    for words, streams, error in [
        ("where=pair", True, "NAME=VALUE"),
        ("where=a%20b=1", True, "NAME=VALUE"),
        ("where=a=1&where=a=2", True, "twice"),
        ("&".join(f"where={name}=1" for name in "abcde"), True, "limit 4"),
        ("where=a=" + "," * 16, True, "limit 16"),
        ("where=a=" + "x" * 600, True, "limit 512"),
        ("where=a=1", False, "only streams"),
    ]:
        accept = {"accept": "text/event-stream"} if streams else {}
        answer = await beside.client().get(f"{PATH}?{words}", headers={"x-api-key": key, **accept})
        assert answer.status_code == 400, words
        assert error in answer.json()["detail"], words


async def test_commands_and_gaps_are_events(make: Make, address: muster.testing.Instance) -> None:
    beside = await make()
    async with (
        muster.connect(address) as publisher,
        stream(beside.server.address, PATH, beside.key("read:*")) as reader,
    ):
        assert await publisher.command(ROOM, b"now") == muster.Delivered(1)
        event = await reader.message()
    assert (event.name, event.data["data"]) == ("command", "now")


async def test_history_comes_first(make: Make, address: muster.testing.Instance) -> None:
    beside = await make()
    async with muster.connect(address) as publisher:
        for at in range(10):
            await publisher.publish(ROOM, str(at).encode())
        async with stream(beside.server.address, f"{PATH}?history=3", beside.key("read:*")) as reader:
            await publisher.publish(ROOM, b"10")
            assert [event.data["data"] for event in await reader.messages(4)] == ["7", "8", "9", "10"]


async def test_a_client_goes_on_where_it_stopped(make: Make, address: muster.testing.Instance) -> None:
    beside = await make()
    key = beside.key("read:*")
    async with muster.connect(address) as publisher:
        async with stream(beside.server.address, PATH, key) as reader:
            await publisher.publish(ROOM, b"seen")
            last = (await reader.message()).id
        for at in range(5):
            await publisher.publish(ROOM, str(at).encode())
        async with stream(beside.server.address, PATH, key, {"last-event-id": last}) as reader:
            await publisher.publish(ROOM, b"5")
            assert [event.data["data"] for event in await reader.messages(6)] == [str(at) for at in range(6)]


async def test_another_process_goes_on_too(make: Make, address: muster.testing.Instance) -> None:
    one, other = await make(), await make()
    key = one.key("read:*")
    other.server.reload(Trust((SECRET,)))
    async with muster.connect(address) as publisher:
        async with stream(one.server.address, PATH, key) as reader:
            await publisher.publish(ROOM, b"seen")
            last = (await reader.message()).id
        await publisher.publish(ROOM, b"missed")
        async with stream(other.server.address, PATH, key, {"last-event-id": last}) as reader:
            assert (await reader.message()).data["data"] == "missed"


async def test_what_is_no_longer_kept_is_a_gap(make: Make, address: muster.testing.Instance) -> None:
    beside = await make(history_max=5)
    key = beside.key("read:*")
    async with muster.connect(address) as publisher:
        async with stream(beside.server.address, PATH, key) as reader:
            await publisher.publish(ROOM, b"seen")
            last = (await reader.message()).id
        for at in range(20):
            await publisher.publish(ROOM, str(at).encode())
        async with stream(beside.server.address, PATH, key, {"last-event-id": last}) as reader:
            gap, *events = await reader.messages(6)
    assert (gap.name, gap.data["first"], gap.data["last"]) == ("gap", 2, 16)
    assert gap.data["reason"] == "expired"
    assert [event.data["data"] for event in events] == ["15", "16", "17", "18", "19"]


async def test_what_was_never_fetched_is_a_gap_too(make: Make, address: muster.testing.Instance) -> None:
    one, other = await make(), await make(history_max=5)
    key = one.key("read:*")
    other.server.reload(Trust((SECRET,)))
    async with muster.connect(address) as publisher:
        async with stream(one.server.address, PATH, key) as reader:
            await publisher.publish(ROOM, b"seen")
            last = (await reader.message()).id
        for at in range(10):
            await publisher.publish(ROOM, str(at).encode())
        async with stream(other.server.address, PATH, key, {"last-event-id": last}) as reader:
            gap = await reader.message()
            assert (gap.name, gap.data["first"], gap.data["last"]) == ("gap", 2, 6)
            assert [event.data["data"] for event in await reader.messages(5)] == [str(at) for at in range(5, 10)]


async def test_a_wrong_id_is_refused(make: Make) -> None:
    beside = await make()
    answer = await beside.client("read:*").get(
        PATH, headers={"accept": "text/event-stream", "last-event-id": "yesterday"}
    )
    assert answer.json()["code"] == "bad_request"


async def test_a_quiet_stream_beats(make: Make) -> None:
    beside = await make(heartbeat_s=0.2)
    async with stream(beside.server.address, PATH, beside.key("read:*")) as reader, asyncio.timeout(PATIENT_S):
        assert (await reader.event()).data == "retry: 1000"
        assert [(await reader.event()).data for _ in range(3)] == [":", ":", ":"]


async def test_a_thousand_readers_share_one_membership(make: Make, address: muster.testing.Instance) -> None:
    beside = await make()
    key, count = beside.key("read:*", "members:*"), 1_000
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(PATIENT_S):
        readers = [await stack.enter_async_context(stream(beside.server.address, PATH, key)) for _ in range(count)]
        publisher = await stack.enter_async_context(muster.connect(address))
        assert (await publisher.members(ROOM)).count == 1
        said = [str(at) for at in range(10)]
        for text in said:
            await publisher.publish(ROOM, text.encode())
        for reader in readers:
            assert [event.data["data"] for event in await reader.messages(10)] == said
        assert beside.server.status()["streams"] == count

    async def gone() -> bool:
        return not beside.server.status()["streams"]

    await eventually(gone)
    assert beside.server.counts.value("http_streams_ended", reason="left") == count


async def test_a_reader_that_never_reads_costs_no_memory_and_holds_nobody_up(
    make: Make, address: muster.testing.Instance
) -> None:
    beside = await make(room_bytes_max=65_536, stall_s=1.0, history_max=50)
    key = beside.key("read:*")
    async with (
        muster.connect(address) as publisher,
        stream(beside.server.address, PATH, key, limit=1_024) as idle,
        stream(beside.server.address, PATH, key) as reader,
    ):
        seen = 0

        async def read() -> None:
            nonlocal seen
            while seen < 400:
                seen += (await reader.message()).name == "message"

        reading = asyncio.create_task(read())
        for _ in range(400):
            await publisher.publish(ROOM, b"x" * 60_000)
            assert gauge(beside, "http_room_bytes") < 400_000
        await asyncio.wait_for(reading, PATIENT_S)

        async def cut() -> bool:
            return beside.server.counts.value("http_streams_ended", reason="stalled") == 1

        await eventually(cut)
        del idle


async def test_a_slow_reader_gets_a_gap_and_goes_on(make: Make, address: muster.testing.Instance) -> None:
    beside = await make(room_bytes_max=65_536, history_max=50)
    async with (
        muster.connect(address) as publisher,
        stream(beside.server.address, PATH, beside.key("read:*"), limit=1_024) as reader,
    ):
        for at in range(300):
            await publisher.publish(ROOM, str(at).encode().ljust(60_000))
        await publisher.publish(ROOM, b"last")
        covered, gaps = 0, 0
        async with asyncio.timeout(PATIENT_S):
            while True:
                event = await reader.message()
                if event.name == "gap":
                    assert event.data["first"] == covered + 1
                    assert event.data["reason"] == "slow"
                    covered, gaps = event.data["last"], gaps + 1
                    continue
                offset = int(event.data["position"].rpartition(":")[2])
                assert covered < offset <= covered + 64
                covered = offset
                if event.data["data"] == "last":
                    break
        assert gaps >= 1


async def test_a_revoked_key_s_streams_end(make: Make) -> None:
    beside = await make()
    async with stream(beside.server.address, PATH, beside.key("read:*")) as reader, asyncio.timeout(PATIENT_S):
        keys.revoke(beside.keys_file, "key-0")
        event = await reader.message()
        assert (event.name, event.data["reason"]) == ("goodbye", "revoked")


async def test_a_stream_ends_with_its_token(make: Make, address: muster.testing.Instance) -> None:
    beside = await make(heartbeat_s=0.2)
    token = mint(SECRET, 7, ["read"], time.time(), 2)
    address._tokens[token.encode()] = 7
    headers = {"authorization": f"Bearer {token}"}
    async with stream(beside.server.address, PATH, "", headers) as reader, asyncio.timeout(PATIENT_S):
        event = await reader.message()
        assert (event.name, event.data["reason"]) == ("goodbye", "expired")


async def test_drain_says_goodbye_and_lets_requests_finish(make: Make, address: muster.testing.Instance) -> None:
    beside = await make()
    client = beside.client("command:*", "read:*")
    async with (
        muster.connect(address) as member,
        stream(beside.server.address, PATH, beside.key("read:*")) as reader,
        asyncio.timeout(PATIENT_S),
    ):
        address.stop("broker")  # the command below waits for its time
        waiting = asyncio.create_task(client.post("/api/v1/rooms/other/commands?expires=1", content=b"x"))

        async def running() -> bool:
            return bool(beside.server.status()["running"] == 2)

        await eventually(running)
        beside.server.drain()
        event = await reader.message()
        assert (event.name, event.data["reason"]) == ("goodbye", "draining")
        assert event.data["retry_ms"] > 0
        try:
            await reader.event()
        except EOFError:
            pass
        else:
            raise AssertionError("the stream goes on after its goodbye")
        assert (await waiting).status_code in {200, 504}
        try:
            await asyncio.open_connection(*beside.server.address)
        except ConnectionRefusedError:
            pass
        else:
            raise AssertionError("connections are taken while it drains")
        assert not member.closed


async def test_a_room_is_left_when_nobody_reads_it(make: Make, address: muster.testing.Instance) -> None:
    beside = await make(room_idle_s=0.2)
    async with stream(beside.server.address, PATH, beside.key("read:*")):
        pass

    async def left() -> bool:
        return not beside.server.status()["rooms"]

    await eventually(left)
    async with muster.connect(address) as asking:
        assert (await asking.members(ROOM)).count == 0


async def test_streams_and_rooms_are_bounded(make: Make) -> None:
    beside = await make(streams_max=2, rooms_max=2)
    key = beside.key("read:*", "history:*")
    client = beside.client("read:*", "history:*")
    accept = {"accept": "text/event-stream"}
    async with (
        stream(beside.server.address, "/api/v1/rooms/a/messages", key),
        stream(beside.server.address, "/api/v1/rooms/b/messages", key),
    ):
        for room in ("a", "c"):
            answer = await client.get(f"/api/v1/rooms/{room}/messages", headers=accept)
            assert (answer.status_code, answer.json()["code"]) == (503, "busy")

    async def gone() -> bool:
        return not beside.server.status()["streams"]

    await eventually(gone)
    for room in ("c", "d", "e"):
        assert (await client.get(f"/api/v1/rooms/{room}/messages")).status_code == 200
    assert beside.server.status()["rooms"] <= 2


async def test_more_rooms_than_one_client_may_be_in(make: Make, address: muster.testing.Instance) -> None:
    beside = await make(requests_rate=100_000, room_idle_s=600)
    client = beside.client("history:*")
    for at in range(300):
        answer = await client.get(f"/api/v1/rooms/r{at}/messages?history=1")
        assert answer.status_code == 200, answer.text
    assert beside.server.status()["rooms"] == 300
