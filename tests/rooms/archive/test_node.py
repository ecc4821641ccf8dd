"""A node of the archive beside an instance: what it keeps, over HTTP and the library, and what it does when parts fail."""

import asyncio
import datetime
from collections.abc import Sequence
from typing import Any

import pytest

import muster
import muster.testing
from muster.archive import Archive, AsyncArchive, Kept
from muster.clock import now_ms
from muster_server.plane.calls import CallError
from muster_server.plane.ownership.errors import StoreError
from muster_server.plane.trust import PROBES
from muster_server.systems.rooms.archive.keeping import Patterns
from muster_server.systems.rooms.archive.records import State, Store, Write
from muster_server.systems.rooms.archive.shapes import Gap, Latest, Message, Page, Read, ReadLatest
from tests.http.conftest import Beside, eventually
from tests.rooms.archive.conftest import Rig, Rigged
from tests.waiting import PATIENT_S, until

NEWS = "/api/v1/rooms/news/messages"


async def publish(address: muster.testing.Instance, room: str, numbers: range) -> None:
    async with muster.connect(address, gateways=[]) as client:
        for number in numbers:
            await client.publish(room, b"%d" % number)


async def stored(rig: Rig, room: str) -> list[int]:
    """The messages of a room in the archive, oldest first."""
    page = await rig.archive.read(Read(room, 10_000, back=False))
    return [int(item.data) for item in page.items if isinstance(item, Message)]


async def until_stored(rig: Rig, room: str, numbers: Sequence[int]) -> None:
    async def are() -> bool:
        return await stored(rig, room) == list(numbers)

    await eventually(are)


async def test_a_named_room_is_kept_from_the_start_and_others_once_they_have_a_member(
    rig: Rig, address: muster.testing.Instance
) -> None:
    await publish(address, "news", range(30))
    await until_stored(rig, "news", range(30))
    await publish(address, "kept:a", range(10))
    await publish(address, "other", range(10))
    rig.found |= {"kept:a": 1, "other": 1}
    await until_stored(rig, "kept:a", range(10))  # as its broker had them still
    assert not (await rig.archive.read(Read("other", 1))).kept
    assert rig.node is not None
    figures = {name: value for name, _, value in (*rig.node.counters(), *rig.node.gauges())}
    assert figures["archive_messages"] == 40
    assert figures["archive_rooms"] == 2


async def test_pages_over_http_go_on_behind_memory(beside: Beside, rig: Rig, address: muster.testing.Instance) -> None:
    began = now_ms()
    await publish(address, "news", range(90))
    await until_stored(rig, "news", range(90))
    client = beside.client("history:*")
    said = (await client.get(NEWS, params={"history": 15})).json()
    assert [int(each["data"]) for each in said["messages"]] == list(range(75, 90))
    assert said["gaps"] == []
    seen: list[int] = []
    asked: dict[str, Any] = {"history": 20, "reverse": "true"}
    while True:
        said = (await client.get(NEWS, params=asked)).json()
        seen += [int(each["data"]) for each in said["messages"]]
        assert said["gaps"] == []
        if said["next"] is None:
            break
        asked["after"] = said["next"]
    assert seen == list(range(90))[::-1]
    assert said["whole"]
    older = said["messages"][-1]
    assert began <= older["at"] <= now_ms()
    for since in (
        older["position"],
        str(began),
        datetime.datetime.fromtimestamp(began / 1_000, datetime.UTC).isoformat(),
    ):
        seen, asked = [], {"history": 7, "since": since}
        while True:
            said = (await client.get(NEWS, params=asked)).json()
            seen += [int(each["data"]) for each in said["messages"]]
            if said["next"] is None:
                break
            asked["after"] = said["next"]
        assert seen == list(range(1 if since == older["position"] else 0, 90)), since
    assert (await client.get(NEWS, params={"history": 5, "since": str(began), "reverse": "true"})).json()[
        "messages"
    ] == []


async def test_wrong_questions_are_refused(beside: Beside) -> None:
    client = beside.client("history:*")
    cursor = (await client.get(NEWS, params={"history": 0})).json()["next"]
    assert cursor is None
    for asked in (
        {"since": "yesterday"},
        {"since": "1.1.1:x"},
        {"since": "12"},
        {"since": "2027-01-01T00:00:00"},
        {"since": "9" * 30},
        {"after": "x"},
        {"reverse": "perhaps"},
        {"history": "-1"},
        {"history": "21"},
    ):
        answer = await client.get(NEWS, params=asked)
        assert answer.status_code == 400, (asked, answer.text)
        assert answer.json()["code"] in {"bad_request", "too_much_history"}
    answer = await client.get("/api/v1/rooms/other/messages", params={"since": "1790000000000"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert "archive.rooms" in answer.json()["detail"]
    denied = await beside.client("history:other").get(NEWS)
    assert denied.status_code == 403


async def test_without_an_answer_of_the_archive_memory_is_told_and_the_rest_refused(
    beside: Beside, rig: Rig, address: muster.testing.Instance
) -> None:
    await publish(address, "news", range(5))
    await until_stored(rig, "news", range(5))
    client = beside.client("history:*")
    await rig.end()
    said = (await client.get(NEWS)).json()
    assert [int(each["data"]) for each in said["messages"]] == list(range(5))
    assert not said["whole"]
    answer = await client.get(NEWS, params={"since": "1790000000000"})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


async def test_the_library_reads_pages_and_items(beside: Beside, rig: Rig, address: muster.testing.Instance) -> None:
    await publish(address, "news", range(50))
    await until_stored(rig, "news", range(50))
    key = beside.key("history:*")
    async with AsyncArchive(beside.server.url, key=key) as archive:
        page = await archive.page("news", limit=3)
        assert [each.data for each in page.messages] == [b"47", b"48", b"49"]
        assert (page.gaps, page.whole) == ((), True)
        back = await archive.page("news", limit=2, after=page.next)
        assert [each.data for each in back.messages] == [b"45", b"46"]
        with pytest.raises(muster.Refused, match="history"):
            await archive.page("news", limit=21)

    def read() -> list[bytes]:
        with Archive(beside.server.url, key=key) as archive:
            first = archive.page("news", limit=20, since=0.0 + 1_790_000_000)
            assert first.messages[0].at is not None
            with pytest.raises(muster.Invalid):
                archive.page("news", since=datetime.datetime(2027, 1, 1))
            return [each.data for each in archive.page("news", limit=20, since=first.messages[4].position).messages]

    assert await asyncio.to_thread(read) == [b"%d" % at for at in range(5, 25)]


async def test_items_of_the_library_are_all_messages(
    beside: Beside, rig: Rig, address: muster.testing.Instance
) -> None:
    await publish(address, "news", range(30))
    await until_stored(rig, "news", range(30))
    async with AsyncArchive(beside.server.url, key=beside.key("history:*")) as archive:
        with pytest.raises(muster.Refused):  # pages of 100, where the face allows 20
            async for _ in archive.items("news"):
                pass
        found = [each async for each in archive.items("news", limit=20)]
        assert [each.data for each in found if isinstance(each, Kept)] == [b"%d" % at for at in range(30)][::-1]


async def test_a_node_that_is_killed_goes_on_behind_what_is_stored(rig: Rig, address: muster.testing.Instance) -> None:
    await publish(address, "news", range(10))
    await until_stored(rig, "news", range(10))
    await rig.kill()
    await publish(address, "news", range(10, 20))
    await rig.start()
    await publish(address, "news", range(20, 30))
    await until_stored(rig, "news", range(30))
    page = await rig.archive.read(Read("news", 100))
    assert not any(isinstance(item, Gap) for item in page.items)


async def test_what_it_missed_is_a_gap(rig: Rig, address: muster.testing.Instance) -> None:
    await publish(address, "news", range(10))
    await until_stored(rig, "news", range(10))
    await rig.end()
    await publish(address, "news", range(10, 20))
    address.restart("broker")
    address.restart("gateway")
    await rig.start()
    await publish(address, "news", range(20, 23))
    await until_stored(rig, "news", [*range(10), 20, 21, 22])
    items = (await rig.archive.read(Read("news", 100, back=False))).items
    assert isinstance(items[10], Gap)
    assert items[10].first == 11
    assert rig.node is not None
    assert {name: value for name, _, value in rig.node.counters()}["archive_gaps"] >= 1


class Failing:
    """A store that fails, or whose answers are lost, as often as the test says."""

    def __init__(self, inner: Store) -> None:
        self.inner, self.where = inner, inner.where
        self.fails = self.loses = 0
        self.written = 0

    async def write(self, writes: Sequence[Write]) -> set[str]:
        if self.fails:
            self.fails -= 1
            raise StoreError("it does not answer")
        said = await self.inner.write(writes)
        self.written += 1
        if self.loses:
            self.loses -= 1
            raise StoreError("its answer was lost")
        return said

    async def state(self, room: str) -> State:
        return await self.inner.state(room)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def test_a_store_that_fails_is_asked_again_and_nothing_is_written_twice(
    tmp_path: Any, address: muster.testing.Instance
) -> None:
    rig = Rig(tmp_path, address, rooms="news")
    made: list[Failing] = []

    def around(store: Store) -> Store:
        made.append(Failing(store))
        return made[-1]

    try:
        node = await rig.start(around)
        await publish(address, "news", range(5))
        await until_stored(rig, "news", range(5))
        made[0].fails, made[0].loses = 3, 1
        await publish(address, "news", range(5, 15))
        await until_stored(rig, "news", range(15))
        made[0].loses = 2
        await publish(address, "news", range(15, 40))
        await until_stored(rig, "news", range(40))
        assert {name: value for name, _, value in node.counters()}["archive_store_failures"] >= 4
    finally:
        await rig.archive.close()
        await rig.end()


async def test_another_writer_is_followed_and_nothing_is_written_twice(
    rig: Rig, address: muster.testing.Instance
) -> None:
    await publish(address, "news", range(5))
    await until_stored(rig, "news", range(5))
    other = Rig(rig.folder, address, rooms="news")
    try:
        await other.start()
        for begin in range(5, 55, 10):
            await publish(address, "news", range(begin, begin + 10))
            await until_stored(rig, "news", range(begin + 10))
    finally:
        await other.archive.close()
        await other.end()
    await publish(address, "news", range(55, 60))
    await until_stored(rig, "news", range(60))


async def test_a_store_that_is_away_for_long_costs_a_gap_and_no_message_waits(
    tmp_path: Any, address: muster.testing.Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    from muster_server.systems.rooms.archive import writing
    from muster_server.systems.rooms.http import sessions

    monkeypatch.setattr(writing, "WAITING_BYTES_MAX", 1 << 16)
    monkeypatch.setattr(sessions, "OWN_BUFFER_BYTES", 1 << 18)
    rig = Rig(tmp_path, address, rooms="news")
    made: list[Failing] = []

    def around(store: Store) -> Store:
        made.append(Failing(store))
        return made[-1]

    try:
        node = await rig.start(around)
        await publish(address, "news", range(5))
        await until_stored(rig, "news", range(5))
        made[0].fails = 1 << 30
        async with muster.connect(address, gateways=[]) as client:
            for number in range(5, 1_005):
                await client.publish("news", b"%d" % number + b" " * 1_000)
        made[0].fails = 0
        await publish(address, "news", range(1_005, 1_006))

        async def ends() -> bool:
            return (await stored(rig, "news"))[-1] == 1_005

        await eventually(ends)
        items: list[Any] = []
        at = None
        while True:
            page: Page = await rig.archive.read(Read("news", 10_000, back=False, at=at))
            items += page.items
            if page.over:
                break
            at = items[-1].place
        gaps = [item for item in items if isinstance(item, Gap)]
        assert gaps
        assert {gap.reason for gap in gaps} == {"reader"}
        had = {int(item.data) for item in items if isinstance(item, Message)}
        lost = {offset - 1 for gap in gaps for offset in range(gap.first, (gap.last or 0) + 1)}
        assert had | lost == set(range(1_006))
        assert not had & lost
        assert {name: value for name, _, value in node.counters()}["archive_lost"] == len(lost)
    finally:
        await rig.archive.close()
        await rig.end()


async def test_rooms_beyond_the_limit_are_counted(rigged: Rigged, address: muster.testing.Instance) -> None:
    rig = await rigged(rooms="kept:*", rooms_max=2, look_ms=100)
    rig.found |= {f"kept:{at}": 1 for at in range(5)}
    node = rig.node
    assert node is not None
    await until(lambda: node.status()["left_out"] == 3)
    assert node.status()["rooms"] == 2


async def test_an_idle_room_is_left_and_joined_again_where_it_ended(
    rigged: Rigged, address: muster.testing.Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await rigged(rooms="kept:*", look_ms=100, idle_s=10)
    node = rig.node
    assert node is not None
    rig.found |= {"kept:a": 2}
    await publish(address, "kept:a", range(5))
    await until_stored(rig, "kept:a", range(5))
    rig.found = {}
    keeping = node._keeping
    for kept in keeping._rooms.values():
        kept.used -= 11
    await until(lambda: node.status()["rooms"] == 0)
    await publish(address, "kept:a", range(5, 8))
    rig.found = {"kept:a": 1}
    await until_stored(rig, "kept:a", range(8))


async def test_requests_of_other_processes_are_bounded(rig: Rig) -> None:
    for asked in (Read("news", 0), Read("news", 1 << 20), Read("news", 1, since_ms=1 << 63)):
        with pytest.raises(CallError) as raised:
            await rig.archive.read(asked)
        assert raised.value.code == "question"


def test_patterns_are_those_of_rights() -> None:
    patterns = Patterns(("sports:*", "news"))
    assert patterns.named == {"default:news"}
    assert patterns.match("sports:final")
    assert patterns.match("news")
    assert not patterns.match("newsletter")
    assert Patterns(("*",)).match("a:b")
    assert not Patterns(("*",)).match(f"{PROBES}:1")
    for wrong in ("a*b", "", "*a"):
        with pytest.raises(ValueError, match=r"\w"):
            Patterns((wrong,))


async def priced(client: muster.Client, key: str, data: bytes) -> None:
    await client.publish("news", data, headers={"key": key})


async def test_a_join_behind_the_latest_of_each_key_misses_nothing_and_repeats_nothing(
    beside: Beside, rig: Rig, address: muster.testing.Instance
) -> None:
    async with muster.connect(address) as client:
        for number in range(30):
            await priced(client, f"k{number % 7}", b"%d" % number)
        await until_stored(rig, "news", range(30))
        async with AsyncArchive(beside.server.url, key=beside.key("history:*")) as archive:
            latest = await archive.latest("news")
        assert latest.whole
        assert [(each.headers["key"], int(each.data)) for each in latest.messages] == [
            (f"k{number % 7}", number) for number in range(23, 30)
        ]
        for number in range(30, 40):  # before the join
            await priced(client, "k1", b"%d" % number)
        async with client.join("news", positions=latest.positions) as room:
            for number in range(40, 45):
                await priced(client, "k2", b"%d" % number)
            found = [await anext(room) for _ in range(15)]
        assert [int(item.data) for item in found if isinstance(item, muster.Message)] == list(range(30, 45))
        assert found[-1].headers == {"key": "k2"}  # type: ignore[union-attr]


async def test_the_latest_of_each_key_over_http_lead_to_each_kind_of_client(
    beside: Beside, rig: Rig, address: muster.testing.Instance
) -> None:
    async with muster.connect(address, gateways=[]) as publisher:
        for number in range(9):
            await priced(publisher, f"k{number}", b"%d" % number)
        await priced(publisher, "k3", b"")

        async def ended() -> bool:
            return len((await rig.archive.latest(ReadLatest("news", 100))).messages) == 8

        await eventually(ended)
        client = beside.client("history:*", "read:*")
        path, seen, asked = "/api/v1/rooms/news/latest", [], {"limit": 3}
        first = said = (await client.get(path, params=asked)).json()
        while True:
            seen += [each["headers"]["key"] for each in said["messages"]]
            if said["next"] is None:
                break
            said = (await client.get(path, params=asked | {"after": said["next"]})).json()
        assert seen == [f"k{number}" for number in range(9) if number != 3]
        newest = (await client.get(NEWS, params={"history": 1})).json()["messages"][0]
        assert first["resume"]["event_id"] == newest["position"]
        assert first["resume"]["offset"] == 10
        assert first["resume"]["epoch"]
        for wrong in ({"limit": 0}, {"limit": 10_001}, {"after": "x"}):
            assert (await client.get(path, params=wrong)).status_code == 400, wrong
        assert (await client.get("/api/v1/rooms/other/latest")).status_code == 404
        assert (await beside.client("history:other").get(path)).status_code == 403


async def test_headers_are_in_pages_of_memory_and_of_the_archive(
    beside: Beside, rig: Rig, address: muster.testing.Instance
) -> None:
    async with muster.connect(address, gateways=[]) as client:
        await client.publish("news", b"0", headers={"kind": "goal", "gr": "ä"})
        for number in range(1, 40):
            await client.publish("news", b"%d" % number)
    await until_stored(rig, "news", range(40))
    async with AsyncArchive(beside.server.url, key=beside.key("history:*")) as archive:
        found = [each async for each in archive.items("news", limit=20) if isinstance(each, Kept)]
    assert [each.headers for each in found] == [{}] * 39 + [{"kind": "goal", "gr": "ä"}]


async def test_requests_for_keys_are_bounded(rig: Rig) -> None:
    for asked in (
        ReadLatest("news", 0),
        ReadLatest("news", 10_001),
        ReadLatest("news", 1, -1),
        ReadLatest("news", 1, 0, 1 << 63),
    ):
        with pytest.raises(CallError) as raised:
            await rig.archive.latest(asked)
        assert raised.value.code == "question"
    assert await rig.archive.latest(ReadLatest("nothing", 1)) == Latest()


async def test_a_page_is_read_in_time(rig: Rig) -> None:
    async with asyncio.timeout(PATIENT_S):
        assert await rig.archive.read(Read("nothing", 1)) == Page()
