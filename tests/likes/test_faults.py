"""A node of likes under hostile clients and on a full disk: bounded memory, a clear error, others unharmed."""

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import IO, Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from tests.databases import plain
from tests.likes.load import Load
from tests.likes.test_erasing import USER, traces
from tests.redis_server import client_of
from tests.waiting import PATIENT_S

KILLS = 20
HELD_MIB = 24
"""Memory that one hostile client may cost: its commands, its answers, and what the sockets hold."""


class Process:
    """`tests.likes.serve` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.port = process, port

    def rss_mib(self) -> float:
        line = next(
            line for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines() if "VmRSS" in line
        )
        return int(line.split()[1]) / 1024

    def client(self) -> Redis:
        return client_of(self.port, socket_timeout=PATIENT_S)


@contextlib.asynccontextmanager
async def running(
    *before: str, folder: Path, stderr: IO[bytes] | None = None, **options: int | str
) -> AsyncIterator[Process]:
    """A process; `before`: a command that runs it; `stderr`: where its log goes."""
    keys = [f"{name}={value}" for name, value in options.items()]
    process = await asyncio.create_subprocess_exec(
        *before, sys.executable, "-m", "tests.likes.serve", str(folder), *keys, stdout=PIPE, stderr=stderr
    )
    assert process.stdout is not None
    try:
        yield Process(process, int(await process.stdout.readline()))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_node_that_is_killed_again_and_again_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    load = Load(Random(35))
    for _ in range(KILLS):
        async with running(folder=tmp_path / "likes", write_behind_ms=100, snapshot_records=700) as node:
            await load.check("127.0.0.1", node.port)
            await load.until_killed("127.0.0.1", node.port, node.process.kill)
    async with running(folder=tmp_path / "likes") as node:
        await load.check("127.0.0.1", node.port)
    (row,) = await plain(f"sqlite:///{tmp_path}/likes/likes.db", "SELECT snapshot_offset FROM muster_likes_logs")
    assert row > (0,), "some started from a snapshot"
    assert load.acknowledged > 2_000


async def test_a_user_has_one_of_a_group_however_often_the_node_is_killed(tmp_path: Path) -> None:
    random, told = Random(54), dict[int, str]()
    options: dict[str, Any] = {"write_behind_ms": 100, "snapshot_records": 700, "one_of": "like,dislike"}
    for _ in range(KILLS // 4):
        async with running(folder=tmp_path / "likes", **options) as node, node.client() as redis:
            for user in range(40):
                has = [kind for kind in ("like", "dislike") if await redis.getbit(f"{kind}:7", user)]
                assert has == ([told[user]] if user in told else has[:1]), user
            with contextlib.suppress(RedisError, OSError):
                for turn in range(1 << 20):
                    if turn == 30:
                        asyncio.get_running_loop().call_later(random.random() / 100, node.process.kill)
                    users, kinds = random.sample(range(40), 8), random.choices(("like", "dislike"), k=8)
                    before = [told.pop(user, None) for user in users]  # what a call without an answer did is not known
                    async with redis.pipeline(transaction=False) as pipe:
                        for user, kind in zip(users, kinds, strict=True):
                            pipe.setbit(f"{kind}:7", user, 1)
                        answers = await pipe.execute()
                    for user, kind, former, was in zip(users, kinds, before, answers, strict=True):
                        assert former is None or was == (former == kind), user
                        told[user] = kind
    assert told


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """All that comes, to the end."""
    said = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(PATIENT_S):
            while data := await reader.read(1 << 16):
                said += data
    return said


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"*1000000000\r\n", b"invalid multibulk length"),
        (b"*3\r\n$6\r\nSETBIT\r\n$536870912\r\n", b"invalid bulk length"),
        (b"*2\r\n$3\r\nGET\r\n$-5\r\n", b"invalid bulk length"),
        (b"*1\r\n!4\r\nPING\r\n", b"expected '$', got '!'"),
        (b"x" * (70 << 10), b"too big inline request"),
        (b"*" + b"9" * 100, b"multibulk"),
    ],
)
async def test_lying_lengths_end_the_connection_with_an_error(tmp_path: Path, sent: bytes, error: bytes) -> None:
    async with running(folder=tmp_path / "log") as node, node.client() as other:
        before = node.rss_mib()
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(sent)
        said = await until_closed(reader)
        assert said.startswith(b"-ERR Protocol error: "), said
        assert error in said
        assert await other.setbit("share:1", 1, 1) == 0
        assert node.rss_mib() < before + HELD_MIB
        writer.close()


async def test_million_commands_without_reading_stay_bounded_and_harm_no_other(tmp_path: Path) -> None:
    async with running(folder=tmp_path / "log") as node, node.client() as other:
        assert await other.setbit("share:1", 1, 1) == 0
        before = node.rss_mib()
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=1 << 16)
        one = b"*2\r\n$4\r\nECHO\r\n$64\r\n" + b"x" * 64 + b"\r\n"
        sent = 0

        async def push() -> None:
            nonlocal sent
            while sent < 1_000_000:
                writer.write(one * 1_000)
                await writer.drain()
                sent += 1_000

        pushing = asyncio.create_task(push())
        for turn in range(200):
            assert await other.setbit("share:1", turn + 2, 1) == 0
        peak = node.rss_mib()
        assert not pushing.done(), "the node stopped reading"
        assert peak < before + HELD_MIB
        # Now it reads: all that was sent is answered.
        taken = 0
        async with asyncio.timeout(PATIENT_S):
            while not pushing.done() or taken < sent * 71:
                taken += len(await reader.read(1 << 20))
        await pushing
        assert taken == 1_000_000 * 71
        assert node.rss_mib() < before + HELD_MIB
        writer.close()


async def test_slow_loris_holds_up_no_other(tmp_path: Path) -> None:
    async with running(folder=tmp_path / "log") as node, node.client() as other:
        opened = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(200)]
        for byte in b"*4\r\n$6\r\nSETBIT\r\n$5\r\nsha":
            for _, writer in opened:
                writer.write(bytes([byte]))
            assert await other.ping()
        for _, writer in opened:
            writer.close()
        assert await other.setbit("share:1", 1, 1) == 0


def can_mount() -> bool:
    """Whether this user may have a file system of its own."""
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def small_disk(disk: Path, stderr: IO[bytes] | None = None) -> AbstractAsyncContextManager[Process]:
    """A node whose log and database are on a disk of 64 MiB, mounted at this folder for the node alone."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mounted = 'mount -t tmpfs -o size=64m none "$0" && exec "$@"'
    return running(*namespace, mounted, str(disk), folder=disk / "log", stderr=stderr)


def fill(filler: Path) -> None:
    """Write to this file until its disk is full."""
    with filler.open("wb") as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"x" * (1 << 16))
            stream.flush()


@pytest.mark.skipif(not can_mount(), reason="needs unshare with a user namespace")
async def test_full_disk_is_told_and_likes_go_on_once_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    async with small_disk(disk) as node, node.client() as client:
        inside = Path(f"/proc/{node.process.pid}/root{disk}")
        filler = inside / "filler"
        fill(filler)
        told: dict[int, int] = {}
        refused = ""
        for user in range(0, 10_000_000, 2_000):
            async with client.pipeline(transaction=False) as pipe:
                for each in range(user, user + 2_000):
                    pipe.setbit(f"share:{each % 50}:{'x' * 200}", each, 1)
                answers = await pipe.execute(raise_on_error=False)
            told |= {user + at: 1 for at, answer in enumerate(answers) if answer == 0}
            if errors := [answer for answer in answers if isinstance(answer, ResponseError)]:
                refused = str(errors[0])
                break
        assert "disk is full" in refused
        assert refused.startswith("MISCONF")
        assert await client.getbit(f"share:1:{'x' * 200}", 1) == 1, "questions are answered"
        os.remove(filler)
        async with asyncio.timeout(PATIENT_S):
            while True:
                with contextlib.suppress(ResponseError):
                    assert await client.setbit("share:again", 1, 1) == 0
                    break
        counts = [await client.bitcount(f"share:{item}:{'x' * 200}") for item in range(50)]
        assert sum(counts) == len(told)


@pytest.mark.skipif(not can_mount(), reason="needs unshare with a user namespace")
async def test_an_erasure_waits_while_the_disk_is_full_and_ends_once_there_is_room(tmp_path: Path) -> None:
    disk, said = tmp_path / "disk", tmp_path / "said"
    disk.mkdir()
    with said.open("wb") as stderr:
        async with small_disk(disk, stderr=stderr) as node, node.client() as client:
            inside = Path(f"/proc/{node.process.pid}/root{disk}")
            async with client.pipeline(transaction=False) as pipe:
                for item in range(2_000):
                    pipe.setbit(f"share:{item}", USER, 1)
                    pipe.setbit(f"share:{item}", 5, 1)
                assert set(await pipe.execute()) == {0}
            assert traces(inside)
            fill(inside / "filler")
            assert await client.execute_command("LIKE.ERASE", USER, 77) == b"OK"  # type: ignore[no-untyped-call]
            async with asyncio.timeout(PATIENT_S):
                while b"an erasure of a user waits" not in said.read_bytes():  # noqa: ASYNC110 - a log tells no one
                    await asyncio.sleep(0.05)
            assert re.search(rb"an erasure of a user waits.*(No space left on device|disk is full)", said.read_bytes())
            phase = await phase_of(client, 77)
            assert phase not in {"done", ""}
            assert await client.getbit("share:7", 5) == 1, "questions are answered"
            os.remove(inside / "filler")
            async with asyncio.timeout(PATIENT_S):
                while await phase_of(client, 77) != "done":  # noqa: ASYNC110 - a node tells no one
                    await asyncio.sleep(0.05)
            assert traces(inside) == []
            assert [await client.bitcount(f"share:{item}") for item in range(2_000)] == [1] * 2_000
            assert await client.setbit("share:7", USER, 1) == 0


async def phase_of(client: Redis, job: int) -> str:
    """The phase of an erasure."""
    ((_, phase, *_),) = await client.execute_command("LIKE.ERASURES", job)  # type: ignore[no-untyped-call]
    return str(phase.decode())
