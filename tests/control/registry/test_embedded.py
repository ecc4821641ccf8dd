"""The embedded server: for this user only, true after kill -9, and unmoved by hostile clients."""

import asyncio
import contextlib
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import structlog

from muster_server.control.errors import UserError
from muster_server.control.registry import questions, server
from muster_server.control.registry.embedded import EmbeddedTree
from muster_server.control.registry.server import SOCKET, STATE, RegistryServer
from muster_server.control.registry.tree import Create, Entry, Unavailable
from muster_server.plane.calls import LOCAL, CallError, Peer
from tests import strikes
from tests.control.registry.services import connected, until_session
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()
SERVE = """
import asyncio, sys, structlog
from pathlib import Path
from muster_server.control.registry.server import RegistryServer
async def main():
    async with RegistryServer(Path(sys.argv[1]), structlog.get_logger()):
        print("serves", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def serve(folder: Path) -> asyncio.subprocess.Process:
    """A server in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"serves\n"
    return process


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Path]:
    """The folder of a server."""
    async with RegistryServer(tmp_path, LOG):
        yield tmp_path


async def test_the_socket_is_for_this_user_and_goes_with_the_server(tmp_path: Path) -> None:
    async with RegistryServer(tmp_path, LOG):
        assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600
        tree = EmbeddedTree(tmp_path)
        await connected(tree)
        await tree.create("/a")
        await tree.close()
        assert stat.S_IMODE((tmp_path / STATE).stat().st_mode) == 0o600
    assert not (tmp_path / SOCKET).exists()


async def test_what_was_answered_is_there_after_kill_9(tmp_path: Path) -> None:
    tree, acknowledged = EmbeddedTree(tmp_path, session_s=5.0), list[str]()
    await tree.start()
    for _ in range(3):
        process = await serve(tmp_path)
        try:
            await until_session(tree, "connected")
            assert set(acknowledged) <= {f"/s/{name}" for name in await tree.children("/s")}
            writing = [asyncio.create_task(tree.create("/s/x", b"x", sequence=True)) for _ in range(200)]
            await asyncio.wait(writing[:20])
        finally:
            process.kill()
            await process.wait()
        results = await asyncio.gather(*writing, return_exceptions=True)
        acknowledged += [result for result in results if isinstance(result, str)]
    assert len(acknowledged) == len(set(acknowledged)) >= 60
    await tree.close()


async def test_a_disk_that_takes_nothing_is_said_and_nothing_is_acknowledged(
    serving: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = EmbeddedTree(serving)
    await connected(tree)
    await tree.create("/a", b"1")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(server, "write_atomically", full)
        with pytest.raises(Unavailable, match="cannot write"):
            await tree.set("/a", b"2")
        late = EmbeddedTree(serving)
        await connected(late)
        assert await late.get("/a") == Entry(b"2", 1)
        await late.close()
    assert await tree.set("/a", b"3") == 2
    await tree.close()


async def test_a_spoilt_file_is_named_and_not_taken_for_nothing(tmp_path: Path) -> None:
    (tmp_path / STATE).write_bytes(b"junk")
    with pytest.raises(UserError, match=STATE):
        await RegistryServer(tmp_path, LOG).__aenter__()


@pytest.mark.parametrize(
    "asked",
    [
        questions.Get(7, "/a"),
        questions.Watch(7),
        questions.Bye(7),
        questions.Get(0, "/../a"),
        questions.Children(0, "a"),
        questions.Transact(0, []),
        questions.Transact(0, [Create("/b"), Create("//")]),
        questions.Welcome(1, b"", 1),
    ],
)
async def test_what_no_client_asks_is_refused_and_changes_nothing(serving: Path, asked: msgspec.Struct) -> None:
    """A session of 0 stands for that of a client."""
    tree, peer = EmbeddedTree(serving), Peer(serving / SOCKET, LOCAL)
    await connected(tree)
    await tree.create("/a", b"1")
    if getattr(asked, "session", 1) == 0:
        asked = msgspec.structs.replace(asked, session=tree._known.session)
    with pytest.raises(CallError):
        async for _ in peer.stream(asked, msgspec.Raw):
            pass
    await peer.close()
    assert await tree.get("/a") == Entry(b"1", 0)
    assert set(await tree.children("/")) == {"a"}
    await tree.close()


async def test_a_client_that_reads_no_changes_loses_its_watch_and_reads_everything_again(
    serving: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "UNSENT_MAX", 3)
    tree, writing = EmbeddedTree(serving), EmbeddedTree(serving)
    await connected(tree, writing)
    assert await tree.children("/") == {}
    states = list[str]()
    tree.on_session(states.append)
    with contextlib.suppress(Unavailable):  # its watch ends as well
        await writing.transaction([Create(f"/{number}") for number in range(4)])
    await until(lambda: "connected" in states, PATIENT_S)
    assert set(await tree.children("/")) == {"0", "1", "2", "3"}
    assert states == ["suspended", "connected"]
    await tree.close()
    await writing.close()


async def test_a_session_is_not_had_without_its_secret(serving: Path) -> None:
    tree, thief = EmbeddedTree(serving), EmbeddedTree(serving)
    await connected(tree)
    await tree.create("/mine", ephemeral=True)
    thief._known = questions.Begin(tree._known.session, bytes(16), 1_000)
    await connected(thief)
    await thief.close()
    assert tree.session == "connected"
    assert await tree.get("/mine") is not None
    await tree.close()


async def test_a_client_that_says_nothing_loses_its_session(serving: Path) -> None:
    tree, silent = EmbeddedTree(serving), EmbeddedTree(serving, session_s=0.5)
    await connected(tree, silent)
    await silent.create("/silent", ephemeral=True)
    assert silent._task is not None
    silent._task.cancel()
    gone = asyncio.Event()
    tree.watch("/silent", gone.set)
    await asyncio.wait_for(gone.wait(), PATIENT_S)
    assert await tree.get("/silent") is None
    await tree.close()


async def test_a_server_that_stood_still_expires_nobody(tmp_path: Path) -> None:
    process = await serve(tmp_path)
    tree = EmbeddedTree(tmp_path, session_s=3.0)
    try:
        await connected(tree)
        await tree.create("/mine", ephemeral=True)
        with strikes.standing_still(process.pid):
            await until_session(tree, "suspended")  # 2 s after it heard the last word
            await asyncio.sleep(1.5)
        await until_session(tree, "connected")
        assert await tree.get("/mine") is not None
    finally:
        await tree.close()
        process.kill()
        await process.wait()


async def test_nobody_answers_for_a_whole_session_and_it_counts_as_expired(tmp_path: Path) -> None:
    tree = EmbeddedTree(tmp_path, session_s=0.5)
    async with RegistryServer(tmp_path, LOG):
        await connected(tree)
        await tree.create("/mine", ephemeral=True)
    await until_session(tree, "suspended")
    await until_session(tree, "expired")
    async with RegistryServer(tmp_path, LOG):
        await until_session(tree, "connected")
        await tree.create("/other", ephemeral=True)
        await tree.close()
