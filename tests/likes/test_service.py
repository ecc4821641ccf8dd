"""A node of likes in the test's own loop: its start, TLS, clients beyond the limit, its end, what it says of itself."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Refused

from muster_server.plane.ownership.errors import Away
from muster_server.plane.spec import SpecError
from muster_server.systems.likes.client import Likes
from muster_server.systems.likes.means import passwords
from muster_server.systems.likes.reach import Denied, Reach
from muster_server.systems.likes.service import LikesService
from tests.likes.serve import service, settings
from tests.waiting import PATIENT_S


@contextlib.asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[tuple[LikesService, int]]:
    """A node until the block ends, and its port."""
    node, stop, ready = service(settings(folder, **options)), asyncio.Event(), asyncio.Event()
    node.on_ready = lambda _: ready.set()
    task = asyncio.create_task(node.run(stop, 1.0))
    await asyncio.wait([task, asyncio.create_task(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            task.result()
        yield node, node.addresses()[0][1]
    finally:
        stop.set()
        await task


async def test_node_comes_back_with_its_likes_and_tells_of_them(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, port), Likes(Reach([("127.0.0.1", port)])) as likes:
        assert await likes.put_all([(b"share:1", user, True) for user in range(100)]) == [False] * 100
        said = node.status()
        assert (said["state"], said["items"], said["users"], said["likes"]) == ("ready", 1, 100, 100)
        assert said["write_behind"]["items_behind"] == 1
        assert "1 items wait" in said["notes"][0]
        names = [name for name, _, _ in (*node.counters(), *node.gauges())]
        assert len(set(names)) == len(names)
        assert {name: value for name, _, value in node.counters()}["likes_commands"] >= 100
    async with running(tmp_path) as (node, port), Likes(Reach([("127.0.0.1", port)])) as likes:
        assert await likes.counts([b"share:1"]) == [100]
        assert node.status()["write_behind"]["items_behind"] == 0, "the last pass wrote it"


async def test_what_was_sent_before_the_end_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        one = b"*4\r\n$6\r\nSETBIT\r\n$7\r\nshare:1\r\n$3\r\n%03d\r\n$1\r\n1\r\n"
        writer.write(b"".join(one % user for user in range(100, 300)))
        assert await reader.readexactly(4) == b":0\r\n", "it has come"
    assert await reader.read() == b":0\r\n" * 199
    writer.close()


async def test_clients_beyond_the_limit_are_refused_in_words(tmp_path: Path) -> None:
    async with running(tmp_path, connections_max=2) as (node, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await opened[2][0].read() == b"-ERR max number of clients reached\r\n"
        opened[0][1].close()
        async with asyncio.timeout(PATIENT_S):
            while node.status()["connections"] == 2:  # noqa: ASYNC110 - the node tells no one
                await asyncio.sleep(0.01)
        async with Likes(Reach([("127.0.0.1", port)])) as likes:
            assert await likes.put(b"share:1", 1, True) is False
        for _, writer in opened:
            writer.close()


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
async def test_clients_speak_tls_and_know_the_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "9",
    ]
    names = ["-subj", "/CN=likes", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [*command, *names, "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
    files = {"tls_cert_file": str(certificate), "tls_key_file": str(key)}
    async with running(tmp_path / "likes", **files) as (_, port):
        async with Likes(Reach([("127.0.0.1", port)], ca_file=str(certificate))) as likes:
            assert await likes.put_all([(b"share:1", user, True) for user in range(3_000)]) == [False] * 3_000
            assert await likes.counts([b"share:1"]) == [3_000]
        async with Likes(Reach([("127.0.0.1", port)])) as plain:
            with pytest.raises(Away):
                await plain.counts([b"share:1"])
        async with Redis(host="127.0.0.1", port=port, ssl=True) as stranger:
            with pytest.raises(Refused, match="certificate"):
                await stranger.ping()


async def test_wrong_password_is_denied(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("web:s3cret:x\n\nreader:other\n")
    async with running(tmp_path / "likes", users_file=str(users)) as (_, port):
        for user, password in (("web", "wrong"), ("nobody", "s3cret:x"), (None, None)):
            async with Likes(Reach([("127.0.0.1", port)], user, password)) as likes:
                with pytest.raises(Denied):
                    await likes.counts([b"share:1"])
        async with Likes(Reach([("127.0.0.1", port)], "reader", "other")) as likes:
            assert await likes.put(b"share:1", 1, True) is False


@pytest.mark.parametrize("text", ["", "\n", "web", "web:", ":x", "web:x\nnothing"])
def test_file_of_users_that_lets_no_one_in_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "users"
    file.write_text(text)
    with pytest.raises(SpecError, match=str(file)):
        passwords(str(file))


async def test_second_node_of_a_folder_does_not_start(tmp_path: Path) -> None:
    async with running(tmp_path):
        with pytest.raises(OSError, match="open in another process"):
            async with running(tmp_path):
                pass
