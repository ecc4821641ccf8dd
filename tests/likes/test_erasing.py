"""Erasing users: afterwards no file of a partition names them, whatever is cut short on the way; and their export."""

import asyncio
import contextlib
import gc
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import structlog

from muster.clock import now_ms
from muster_server.plane.database.errors import DatabaseError, Unavailable
from muster_server.plane.database.url import location
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.likes.client import Likes
from muster_server.systems.likes.database.store import SqlStore
from muster_server.systems.likes.erasing import Eraser, Unfinished
from muster_server.systems.likes.erasure import Exported
from muster_server.systems.likes.partition import opened
from muster_server.systems.likes.reach import Erasing, Reach
from muster_server.systems.likes.stores import LikesStore
from tests.databases import Database, plain
from tests.likes.conftest import Face, problem
from tests.likes.serve import settings
from tests.likes.test_behind import Node
from tests.likes.test_service import running
from tests.waiting import PATIENT_S

LOG = structlog.get_logger()
USER: Final = 0x1AB2C3D4E5F60718
OTHERS: Final = (5, 7, 1 << 40)
JOB: Final = 77
FORMS: Final = [
    form
    for number in (USER, USER + 1)  # the length of a string of bits is one more
    for form in (str(number).encode(), number.to_bytes(8, "little"), number.to_bytes(8, "big"))
]


def traces(folder: Path) -> list[str]:
    """The files that name the user, as text or as a number in either order of bytes."""
    found: list[str] = []
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # the log deletes segments in its own thread
            content = file.read_bytes()
            if any(form in content for form in FORMS):
                found.append(str(file.relative_to(folder)))
    return sorted(found)


class Crash(BaseException):
    """The process ends here."""


class Crashing:
    """Ends the process at one of its steps; counts all."""

    def __init__(self, at: int | None) -> None:
        self.count, self._at = 0, at

    def step(self) -> None:
        self.count += 1
        if self.count == self._at:
            raise Crash

    def around(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def made(*words: Any) -> Any:
            self.step()
            said = await call(*words)
            self.step()
            return said

        return made


class CrashingStore:
    """A store whose calls are steps."""

    def __init__(self, store: SqlStore, crashing: Crashing) -> None:
        self._store, self._crashing = store, crashing
        self.where = store.where

    def __getattr__(self, name: str) -> Any:
        return self._crashing.around(getattr(self._store, name))


class CrashingEraser(Eraser):
    """An eraser whose orders to the log are steps."""

    crashing: Crashing

    def _append(self, taken: bool) -> None:
        super()._append(taken)
        self.crashing.step()

    async def _begin_clean(self) -> None:
        await self.crashing.around(super()._begin_clean)()

    async def _trimmed(self) -> int:
        return int(await self.crashing.around(super()._trimmed)())


@asynccontextmanager
async def partition(
    folder: Path, crashing: Crashing | None = None, **options: Any
) -> AsyncIterator[tuple[Node, Eraser]]:
    """A partition that is served to the test alone; not closed cleanly if a step crashes."""
    told = settings(folder, **options)
    database = SqlStore(location(str(options.get("database") or told.database)), "muster", 0)
    store: Any = CrashingStore(database, crashing) if crashing else database
    try:
        made = await opened(told, 0, [], store, LOG)
        eraser = CrashingEraser(made.engine, made.behind, None, LOG)
        eraser.crashing = crashing or Crashing(None)
        loop, descriptor = asyncio.get_running_loop(), made.engine.fileno()
        loop.add_reader(descriptor, made.engine.durable, now_ms())
        try:
            yield Node(made), eraser
        finally:
            loop.remove_reader(descriptor)
        made.close()
    finally:
        await database.close()


async def erase(node: Node, eraser: Eraser, *jobs: int) -> None:
    """Begin these jobs, and end all."""
    for job in jobs:
        assert await node("LIKE.ERASE", USER, job) == b"+OK\r\n"
    async with asyncio.timeout(PATIENT_S):
        while node.engine.erasures():
            await eraser.turn()


async def filled(folder: Path, **options: Any) -> None:
    """The user in every place: likes, reactions, a derived set, leaderboards, lengths; in snapshots, rows and the log."""
    async with partition(folder, snapshot_records=1, **options) as (node, _):
        for turn in range(3):
            for item in range(20):
                for user in (*OTHERS, USER):
                    await node.like(f"share:{20 * turn + item}", user)
            assert await node.behind.tried()
        await node.like("dislike:1", USER)
        await node.like("plain", USER)
        await node.like("share:5", USER, 0)
        await node.like("empty:1", USER, 0)
        await node("BITOP", "OR", "both", "share:1", "share:2")
        await node("ZADD", "game:7", 5, USER, 6, "alice")
        await node("ZADD", "game:8", 5, USER)


def counts(said: bytes) -> list[bytes]:
    """The words of an answer to `LIKE.ERASURES JOB`."""
    return [line for line in said.split(b"\r\n") if line and line[:1] not in b"*$"]


async def check_erased(node: Node, folder: Path) -> None:
    """Only the others are left, as they were."""
    engine = node.engine
    for item in range(60):
        assert sorted(engine.likers(b"share:%d" % item, 0, 9)) == sorted(OTHERS), item
    assert sorted(engine.likers(b"both", 0, 9)) == sorted(OTHERS)
    assert [engine.count(key) for key in (b"dislike:1", b"plain", b"empty:1")] == [0, 0, 0]
    assert engine.ranking_len(b"game:7") == 1
    assert engine.ranking_len(b"game:8") == 0
    assert engine.figures()["users"] == len(OTHERS)
    assert traces(folder) == []


async def test_no_file_names_an_erased_user(tmp_path: Path) -> None:
    folder = tmp_path / "likes"
    await filled(folder)
    before = traces(folder)
    assert any(name.endswith(".segment") for name in before)
    assert any(name.startswith("likes.db") for name in before)
    async with partition(folder) as (node, eraser):
        await erase(node, eraser, JOB)
        await check_erased(node, folder)
        said = counts(await node("LIKE.ERASURES", JOB))
        assert said[:2] == [b"77", b"done"]
        assert said[6:8] == [b":1", b":2"], "derived, members"
        assert said[-5:] == [b":1", b"dislike", b":1", b"share", b":59"], "one of no kind, and those by kind"
        assert eraser.erased == 1
    assert traces(folder) == []
    async with partition(folder) as (node, _):
        await check_erased(node, folder)
        assert not (await asyncio.to_thread(LikesStore(settings(folder), 0).check)).faults, (
            "a row that is gone is no fault"
        )


@pytest.mark.timeout(600)
async def test_a_crash_at_any_step_of_an_erasure_leaves_nothing_in_the_end(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    await filled(whole)
    at = 0
    while True:
        at += 1
        folder = tmp_path / str(at)
        shutil.copytree(whole, folder)
        crashing = Crashing(at)
        crashed = False
        try:
            async with partition(folder, crashing) as (node, eraser):
                await erase(node, eraser, JOB)
        except Crash:
            crashed = True
        node = eraser = None  # type: ignore[assignment]
        gc.collect()  # as a process that is gone, they leave the log's lock
        async with partition(folder) as (node, eraser):
            again = [] if counts(await node("LIKE.ERASURES", JOB)) else [JOB]
            await erase(node, eraser, *again)
            await check_erased(node, folder)
            assert counts(await node("LIKE.ERASURES", JOB))[1] == b"done"
        shutil.rmtree(folder)
        if not crashed:
            break
    assert at > 20, "steps"


async def test_changes_of_the_user_are_refused_until_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "likes"
    await filled(folder)
    async with partition(folder) as (node, eraser):
        assert await node("LIKE.ERASE", USER, JOB) == b"+OK\r\n"
        phases = []
        async with asyncio.timeout(PATIENT_S):
            while jobs := node.engine.erasures():
                phases.append(jobs[0][1])
                for words in (
                    ("SETBIT", "share:9", USER, 1),
                    ("ZADD", "game:7", "NX", 7, USER),
                    ("ZINCRBY", "a", 1, USER),
                ):
                    assert (await node(*words)).startswith(b"-ERASING "), (phases, words)
                assert await node("SETBIT", "new:1", 5, 1) in {b":0\r\n", b":1\r\n"}
                await eraser.turn()
        assert phases[0] == "likes"
        assert phases[-1] == "files"
        await check_erased(node, folder)
        assert await node.like("share:9", USER) is False
        assert await node("ZADD", "game:7", 7, USER) == b":1\r\n"


async def test_two_erasures_of_a_user_and_one_of_a_user_who_never_was(tmp_path: Path) -> None:
    folder = tmp_path / "likes"
    await filled(folder)
    async with partition(folder) as (node, eraser):
        assert await node("LIKE.ERASE", 4_711, 3) == b"+OK\r\n"
        await erase(node, eraser, 1, 2, 1)
        await check_erased(node, folder)
        first, second, never = [counts(await node("LIKE.ERASURES", job)) for job in (1, 2, 3)]
        assert [each[1] for each in (first, second, never)] == [b"done"] * 3
        assert b":59" in first
        assert b"share" not in second
        assert b"share" not in never
        assert node.behind.snapshots == 2, "all share two snapshots"
        await erase(node, eraser, 4)
        assert counts(await node("LIKE.ERASURES", 4))[1] == b"done"


async def test_erased_rows_go_from_each_database(tmp_path: Path, database: Database) -> None:
    folder = tmp_path / "likes"
    await filled(folder, database=database.url)
    async with partition(folder, database=database.url) as (node, eraser):
        ((dense,),) = await plain(database.url, f"SELECT dense_id FROM muster_likes_users WHERE user_id = {USER}")
        await erase(node, eraser, JOB)
        assert await plain(database.url, f"SELECT dense_id FROM muster_likes_users WHERE user_id = {USER}") == []
        assert await plain(database.url, "SELECT dense_id FROM muster_likes_erased") == [(dense,)]
        assert len(await plain(database.url, "SELECT DISTINCT snapshot_offset FROM muster_likes_snapshots")) == 2
        await node.like("share:1", USER)
        assert await node.behind.tried()
        assert len(await plain(database.url, f"SELECT dense_id FROM muster_likes_users WHERE user_id = {USER}")) == 1


async def test_a_store_that_fails_delays_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "likes"
    await filled(folder)
    async with partition(folder) as (node, eraser):
        failing = iter([Unavailable("no answer")])
        scrub = SqlStore.scrub

        async def scrubbed(store: SqlStore) -> None:
            for error in failing:
                raise error
            await scrub(store)

        monkeypatch.setattr(SqlStore, "scrub", scrubbed)
        with pytest.raises(DatabaseError, match="no answer"):
            await erase(node, eraser, JOB)
        ((_, phase, *_),) = node.engine.erasures()
        assert phase == "files"
        assert traces(folder), "deleted bytes are still in the file"
        await erase(node, eraser)
        await check_erased(node, folder)


async def test_a_trace_that_is_left_stops_the_erasure(tmp_path: Path) -> None:
    folder = tmp_path / "likes"
    await filled(folder)
    async with partition(folder) as (node, eraser):

        class Blind:
            """An engine that still finds one."""

            def __getattr__(self, name: str) -> Any:
                return getattr(node.engine, name)

            def traces(self, job: int, cursor: int, count: int) -> tuple[int, int]:
                return 0, 1

        eraser._engine = Blind()  # type: ignore[assignment]
        with pytest.raises(Unfinished, match="1 items or leaderboards still have the user"):
            await erase(node, eraser, JOB)
        ((_, phase, *_),) = node.engine.erasures()
        assert phase == "check"


async def test_a_repaired_partition_has_the_others_and_not_the_erased(tmp_path: Path) -> None:
    folder = tmp_path / "likes"
    await filled(folder)
    async with partition(folder) as (node, eraser):
        await erase(node, eraser, JOB)
        for user in (11, 12):
            await node.like("late:1", user)
        assert await node.behind.tried()
    for file in (folder / "0").glob("*.segment"):
        file.write_bytes(b"")
    store = LikesStore(settings(folder), 0)
    assert (await asyncio.to_thread(store.check)).faults
    (tmp_path / "aside").mkdir()
    await asyncio.to_thread(store.repair, tmp_path / "aside")
    async with partition(folder) as (node, _):
        assert node.engine.likers(b"late:1", 0, 9) == [11, 12]
        assert sorted(node.engine.likers(b"share:1", 0, 9)) == sorted(OTHERS)
        assert node.engine.figures()["users"] == len(OTHERS) + 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2))
async def test_an_erasure_survives_kill_9_at_any_time(tmp_path: Path, seed: int) -> None:
    folder, random = tmp_path / "likes", Random(seed)
    await filled(folder)
    async with partition(folder) as (node, _):
        for item in range(2_000):
            node.engine.feed(node.connection, resp("SETBIT", f"many:{item}", USER, 1), now_ms())
        while node.engine.pending():  # noqa: ASYNC110 - the engine tells no one else
            await asyncio.sleep(0.001)
    words = [sys.executable, "-m", "tests.likes.serve", str(folder), "write_behind_ms=100"]
    begun, kills = False, 0
    while True:
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            port = int(await asyncio.wait_for(process.stdout.readline(), PATIENT_S))
            async with Likes(Reach([("127.0.0.1", port)])) as likes:
                if not begun:
                    for said in await likes._routes.each(("LIKE.ERASE", USER, JOB)):
                        assert said
                    begun = True
                if kills == 6:
                    async with asyncio.timeout(PATIENT_S):
                        while not (await likes.erasures.show(JOB)).done:  # noqa: ASYNC110 - a node tells no one
                            await asyncio.sleep(0.05)
                    shown = await likes.erasures.show(JOB)
                    assert (shown.likes["many"], shown.likes["share"], shown.scores) == (2_000, 59, 2)
                    break
                await asyncio.sleep(random.uniform(0, 0.4))
        finally:
            process.kill()
            await process.wait()
        kills += 1
    async with partition(folder) as (node, _):
        await check_erased(node, folder)


def resp(*words: object) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


# --- the client ---------------------------------------------------------------------------------------------------


async def test_client_erases_and_exports(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, port), Likes(Reach([("127.0.0.1", port)])) as likes:
        items = [b"share:%d" % item for item in range(2_500)]
        await likes.put_all([(item, USER, True) for item in items])
        await likes.put_all([(item, 5, True) for item in items[:10]])
        await likes.leaderboards.put(b"game:7", [(str(USER).encode(), 7.5), (b"alice", 1.0)])
        found = [each async for each in likes.erasures.export(USER)]
        assert {each.item for each in found[:-1]} == set(items)
        assert len(found) == len(items) + 1
        assert all(each.at_s is not None and each.score is None for each in found[:-1])
        assert found[-1] == Exported(b"game:7", score=7.5)
        paged, after = [], ""
        while True:
            entries, after = await likes.erasures.page(USER, after, 7)
            paged += entries
            if not after:
                break
        assert paged == found
        phases: list[str] = []
        done = await likes.erasures.erase(USER, lambda erasure: phases.append(erasure.phase))
        assert (done.likes, done.scores, done.derived, done.phase) == ({"share": 2_500}, 1, 0, "done")
        assert (done.snapshots, done.segments, done.looked) == (2, 1, done.of)
        assert phases[-1] == "done"
        assert traces(tmp_path) == []
        assert [each async for each in likes.erasures.export(USER)] == []
        assert await likes.counts(items[:11]) == [1] * 10 + [0]
        assert {name: value for name, _, value in node.counters()}["likes_erased_users"] == 1
        with pytest.raises(StoreError, match="no erasure 5 is known"):
            await likes.erasures.show(5)
        for cursor in ("x", "0:x", "1:0", "0:l1.2"):
            with pytest.raises(StoreError, match="invalid cursor"):
                await likes.erasures.page(USER, cursor)


async def test_client_is_told_that_the_user_is_being_erased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Eraser, "turn", never)
    async with running(tmp_path) as (node, port), Likes(Reach([("127.0.0.1", port)])) as likes:
        job = await likes.erasures.begin(USER)
        with pytest.raises(Erasing, match="being erased; try again"):
            await likes.put(b"share:1", USER, True)
        shown = await likes.erasures.show(job)
        assert (shown.phase, shown.done, shown.looked) == ("likes", False, 0)
        assert any("1 erasures of users under way" in note for note in node.status()["notes"])


async def never(_: Eraser) -> bool:
    return False


# --- over HTTP ----------------------------------------------------------------------------------------------------


class Served:
    """A node as the HTTP face of `conftest.py` finds it."""

    def __init__(self, port: int) -> None:
        self.port = port


async def test_a_user_is_erased_and_exported_over_http(tmp_path: Path) -> None:
    async with running(tmp_path / "likes") as (_, port), Likes(Reach([("127.0.0.1", port)])) as likes:
        face = Face(Served(port), tmp_path)  # type: ignore[arg-type]
        await face.server.start()
        try:
            await likes.put_all([(b"share:%d" % item, USER, True) for item in range(30)])
            await likes.put(b"\xff", USER, True)
            await likes.leaderboards.put(b"game:7", [(str(USER).encode(), float("inf"))])
            path = f"/api/v1/users/{USER}/likes"
            async with face.client("likes:*", "leaderboards:*") as client:
                entries: list[dict[str, Any]] = []
                after: str | None = ""
                while after is not None:
                    page = (await client.get(f"{path}/export", params={"limit": 7, "after": after})).json()
                    assert len(page["entries"]) <= 7
                    entries, after = entries + page["entries"], page["next"]
                assert {each["item"] for each in entries} == {f"share:{item}" for item in range(30)} | {
                    "\ufffd",
                    "game:7",
                }
                assert [each["type"] for each in entries].count("score") == 1
                assert entries[-1]["score"] > 1e300
                problem(await client.get(f"{path}/export", params={"after": "x"}), 400, "bad_request")
                problem(await client.post(f"{path}/erase"), 403, "not_allowed")
                problem(await client.get(f"/api/v1/users/{1 << 64}/likes/export"), 400, "bad_request")
            async with face.client("likes:share:*", f"erase:{USER}") as client:
                problem(await client.get(f"{path}/export"), 403, "not_allowed")
                begun = (await client.post(f"{path}/erase")).json()
                assert begun["user"] == str(USER)
                async with asyncio.timeout(PATIENT_S):
                    while True:
                        shown = (await client.get(f"{path}/erase", params={"job": begun["job"]})).json()
                        if shown["phase"] == "done":
                            break
                        await asyncio.sleep(0.05)
                assert (shown["likes"], shown["scores"], shown["snapshots"]) == ({"": 1, "share": 30}, 1, 2)
                problem(await client.get(f"{path}/erase", params={"job": "5"}), 400, "bad_request")
                problem(await client.get(f"{path}/erase", params={"job": str(1 << 64)}), 400, "bad_request")
                problem(await client.get(f"{path}/erase"), 400, "bad_request")
                problem(await client.post("/api/v1/users/5/likes/erase"), 403, "not_allowed")
        finally:
            await face.server.stop()
        assert traces(tmp_path / "likes") == []
