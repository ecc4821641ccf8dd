"""The behaviour of every version of the tree, the real server's like the memory's."""

import asyncio
from collections.abc import Callable

import pytest

from muster_server.control.registry.tree import (
    DATA_MAX,
    TRANSACTION_MAX,
    BadVersion,
    Check,
    Create,
    Delete,
    Entry,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Refused,
    Session,
    Set,
    Tree,
    TreeError,
    Unavailable,
)
from tests.control.registry.services import Service, connected, until_session
from tests.waiting import PATIENT_S, until

Make = Callable[..., Tree]


async def test_what_is_written_is_read_with_its_version(make: Make) -> None:
    one, other = make(), make()
    await connected(one, other)
    assert await one.create("/a/b/c", b"1") == "/a/b/c"
    assert await one.get("/a/b/c") == Entry(b"1", 0)
    assert await one.set("/a/b/c", b"2") == 1
    assert await one.set("/a/b/c", b"3", 1) == 2
    await until_read(other, "/a/b/c", Entry(b"3", 2))
    assert await one.get("/a/b") == Entry(b"", 0)
    await one.create("/a/b/d", b"4")
    assert await one.children("/a/b") == {"c": Entry(b"3", 2), "d": Entry(b"4", 0)}
    await one.delete("/a/b/c", 2)
    assert await one.get("/a/b/c") is None
    assert await one.children("/a/b/c") == {}


async def until_read(tree: Tree, path: str, wanted: Entry | None) -> None:
    """Another client may lag for a moment."""
    async with asyncio.timeout(PATIENT_S):
        while await tree.get(path) != wanted:  # noqa: ASYNC110 - it happens at the server
            await asyncio.sleep(0.005)


async def test_what_cannot_be_done_says_why(make: Make) -> None:
    tree = make()
    await connected(tree)
    await tree.create("/a/b", b"1")
    with pytest.raises(NodeExists):
        await tree.create("/a/b")
    with pytest.raises(BadVersion):
        await tree.set("/a/b", b"2", 1)
    with pytest.raises(BadVersion):
        await tree.delete("/a/b", 1)
    with pytest.raises(NoNode):
        await tree.set("/a/x", b"2")
    with pytest.raises(NoNode):
        await tree.delete("/a/x")
    with pytest.raises(NotEmpty):
        await tree.delete("/a")
    await tree.create("/a/e", ephemeral=True)
    with pytest.raises(Refused):
        await tree.create("/a/e/below")
    assert await tree.get("/a/b") == Entry(b"1", 0)


async def test_a_sequence_grows_and_a_name_is_not_given_twice(make: Make) -> None:
    tree = make()
    await connected(tree)
    first = await tree.create("/s/x", sequence=True)
    await tree.delete(first)
    later = [await tree.create("/s/x", b"", ephemeral=True, sequence=True) for _ in range(3)]
    assert [first, *later] == sorted({first, *later})
    assert all(len(path) == len("/s/x") + 10 for path in later)


async def test_what_is_ephemeral_ends_with_its_session(make: Make) -> None:
    mine, other = make(), make()
    await connected(mine, other)
    await mine.create("/e/one", b"x", ephemeral=True)
    await mine.create("/e/stays", b"y")
    await until_read(other, "/e/one", Entry(b"x", 0))
    await mine.close()
    await until_read(other, "/e/one", None)
    assert await other.children("/e") == {"stays": Entry(b"y", 0)}


def some() -> list[Operation]:
    """What could be done."""
    return [Set("/t/count", b"4", 1), Delete("/t/new/below"), Create("/t/other", b"o"), Create("/t/s/x", sequence=True)]


async def test_a_transaction_is_done_whole_or_not_at_all(make: Make) -> None:
    tree = make()
    await connected(tree)
    await tree.create("/t/count", b"1")
    await tree.create("/t/replica", b"running")
    results = await tree.transaction(
        [Check("/t/replica", 0), Set("/t/count", b"2", 0), Create("/t/new/below", b"n"), Delete("/t/replica", 0)]
    )
    assert results == [None, 1, "/t/new/below", None]
    await tree.create("/t/replica", b"running")
    await tree.set("/t/replica", b"gone")
    cases: list[tuple[Operation, type[TreeError]]] = [
        (Check("/t/replica", 0), BadVersion),
        (Check("/t/nobody"), NoNode),
        (Create("/t/count"), NodeExists),
        (Delete("/t"), NotEmpty),
    ]
    for failing, error in cases:
        with pytest.raises(error):
            await tree.transaction([*some(), failing])
        assert await tree.get("/t/count") == Entry(b"2", 1)
        assert await tree.get("/t/new/below") == Entry(b"n", 0)
        assert await tree.get("/t/other") is None
        assert await tree.children("/t/s") == {}


async def test_a_watch_is_told_of_changes_to_what_was_read_until_it_is_ended(make: Make) -> None:
    watching, changing = make(), make()
    await connected(watching, changing)
    told = asyncio.Event()
    end = watching.watch("/w", told.set)

    async def changes(path: str, change: Callable[[], object]) -> None:
        await watching.children(path)
        await asyncio.sleep(0.01)  # a turn, for the reports of the connect itself
        told.clear()
        await change()  # type: ignore[misc]
        await asyncio.wait_for(told.wait(), PATIENT_S)

    await changes("/w/x", lambda: changing.create("/w/x/one", b"1"))
    await changes("/w/x", lambda: changing.set("/w/x/one", b"2"))
    await changes("/w/x", lambda: changing.create("/w/x/two"))
    await changes("/w/x", lambda: changing.delete("/w/x/one"))
    await watching.children("/w/x")
    end()
    told.clear()
    await changing.create("/w/x/three")
    await until_read(watching, "/w/x/three", Entry(b"", 0))
    assert not told.is_set()


async def test_what_is_read_after_a_change_was_told_is_as_new_as_that(make: Make) -> None:
    watching, changing = make(), make()
    await connected(watching, changing)
    told = asyncio.Event()
    watching.watch("/w", told.set)
    expected: dict[str, Entry] = {}
    for turn in range(40):
        name = f"n{turn % 7}"
        if name not in expected:
            await changing.create(f"/w/x/{name}", b"%d" % turn)
            expected[name] = Entry(b"%d" % turn, 0)
        elif turn % 3:
            version = await changing.set(f"/w/x/{name}", b"%d" % turn)
            expected[name] = Entry(b"%d" % turn, version)
        else:
            await changing.delete(f"/w/x/{name}")
            del expected[name]
        async with asyncio.timeout(PATIENT_S):
            while await watching.children("/w/x") != expected:
                await told.wait()
                told.clear()


async def test_who_writes_reads_what_it_wrote(make: Make) -> None:
    tree = make()
    await connected(tree)
    tree.watch("/w", lambda: None)
    await tree.create("/w/x/one", b"1")
    for turn in range(20):
        version = (await tree.children("/w/x"))["one"].version
        await tree.set("/w/x/one", b"%d" % turn, version)
        made = await tree.create("/w/x/r", sequence=True)
        assert set(await tree.children("/w/x")) == {"one", made.rpartition("/")[2]}
        await tree.delete(made)
        assert await tree.children("/w/x") == {"one": Entry(b"%d" % turn, version + 1)}


async def test_a_callback_that_raises_is_called_again(make: Make) -> None:
    tree = make()
    calls: list[str] = []

    def fails() -> None:
        calls.append("watch")
        raise RuntimeError("a bug")

    def fails_too(session: Session) -> None:
        calls.append(session)
        raise RuntimeError("another")

    tree.watch("/w", fails)
    tree.on_session(fails_too)
    await connected(tree)
    await until(lambda: {"watch", "connected"} <= set(calls))
    calls.clear()
    await tree.children("/w")
    await tree.create("/w/a")
    await until(lambda: calls)


async def test_what_is_too_large_or_no_path_is_refused(make: Make) -> None:
    tree = make()
    await connected(tree)
    await tree.create("/l/most", bytes(DATA_MAX))
    with pytest.raises(Refused):
        await tree.create("/l/more", bytes(DATA_MAX + 1))
    with pytest.raises(Refused):
        await tree.set("/l/most", bytes(DATA_MAX + 1))
    for path in ("", "a", "/a/", "//", "/a//b", "/.", "/a/..", "/a b", "/ä", "/a\n", "/" + "x" * 255):
        with pytest.raises(ValueError, match="invalid path of a node"):
            await tree.create(path)
        with pytest.raises(ValueError, match="invalid path of a node"):
            await tree.get(path)
    with pytest.raises(ValueError, match="transaction"):
        await tree.transaction([])
    with pytest.raises(ValueError, match="transaction"):
        await tree.transaction([Check("/")] * (TRANSACTION_MAX + 1))
    assert await tree.get("/l/more") is None


async def test_a_server_that_comes_back_in_time_finds_the_same_sessions(service: Service, make: Make) -> None:
    tree, said = make(PATIENT_S), list[Session]()
    tree.on_session(said.append)
    await connected(tree)
    await tree.create("/d/kept", b"1")
    await tree.set("/d/kept", b"2")
    await tree.create("/d/mine", b"e", ephemeral=True)
    await service.stop()
    await until_session(tree, "suspended")
    with pytest.raises(Unavailable):
        await tree.get("/d/kept")
    await service.start()
    await until_session(tree, "connected")
    assert await tree.get("/d/kept") == Entry(b"2", 1)
    assert await tree.get("/d/mine") == Entry(b"e", 0)
    assert said == ["connected", "suspended", "connected"]


async def test_a_session_that_is_taken_is_said_and_another_begins(service: Service, make: Make) -> None:
    tree, other, said = make(), make(), list[Session]()
    await connected(tree, other)
    await tree.create("/x/mine", b"e", ephemeral=True)
    told = asyncio.Event()
    tree.on_session(said.append)
    tree.watch("/x", told.set)
    await service.expire(tree)
    await until(lambda: said[-2:] == ["expired", "connected"])
    await asyncio.wait_for(told.wait(), PATIENT_S)
    await until_read(other, "/x/mine", None)
    await tree.create("/x/mine", b"again", ephemeral=True)


async def test_lost_data_is_a_lost_session(service: Service, make: Make) -> None:
    tree, said = make(), list[Session]()
    await connected(tree)
    await tree.create("/x/kept", b"1")
    await tree.create("/x/mine", b"e", ephemeral=True)
    tree.on_session(said.append)
    await service.wipe()
    await until(lambda: "expired" in said and said[-1] == "connected")
    assert await tree.children("/x") == {}
    await tree.create("/x/mine", b"again", ephemeral=True)
