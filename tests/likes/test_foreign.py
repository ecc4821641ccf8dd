"""Clients of other languages against several nodes of likes: ioredis and node-redis of Node.js, and hiredis of C.

Each is skipped where it is missing: `npm install --prefix .tools ioredis redis`, `apt-get install libhiredis0.14`.
"""

import asyncio
import ctypes
import ctypes.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT
from tests.likes.test_nodes import nodes
from tests.waiting import PATIENT_S

IOREDIS = Path(os.environ.get("MUSTERTEST_IOREDIS", ROOT / ".tools" / "node_modules" / "ioredis"))
NODE_REDIS = Path(os.environ.get("MUSTERTEST_NODE_REDIS", ROOT / ".tools" / "node_modules" / "redis"))
HIREDIS = os.environ.get("MUSTERTEST_HIREDIS") or ctypes.util.find_library("hiredis")


@pytest.mark.skipif(not (IOREDIS.exists() and shutil.which("node")), reason="needs node and ioredis")
async def test_ioredis_finds_every_item(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2) as made:
        command = ["node", str(Path(__file__).with_name("cluster.mjs")), str(IOREDIS), str(made.ports[2])]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=PATIENT_S)
        said = json.loads(done.stdout)
    assert said["before"] == [0] * 40
    assert said["counts"] == [1] * 40
    assert said["newest"] == ["2017"]
    assert said["nodes"] == 8, "to clients each partition is a node"


@pytest.mark.skipif(not (NODE_REDIS.exists() and shutil.which("node")), reason="needs node and node-redis")
async def test_node_redis_goes_on_while_partitions_move(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2) as made:
        command = ["node", str(Path(__file__).with_name("moving.mjs")), str(NODE_REDIS), str(made.ports[2])]
        client = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        async with asyncio.timeout(PATIENT_S):
            assert client.stdout is not None
            assert await client.stdout.readline() == b"begun\n"
        await made.start(3)
        await made.end(3)
        async with asyncio.timeout(PATIENT_S):
            out, _ = await client.communicate()
    said = json.loads(out)
    assert said["liked"] > 0
    assert said["found"] == said["liked"]
    assert sum(said["errors"].values()) <= 2, "a call that is under way when the client drops a node's connection"


class Reply(ctypes.Structure):
    """`redisReply` of hiredis: its first fields, up to the text."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("integer", ctypes.c_longlong),
        *((("double", ctypes.c_double),) if HIREDIS is not None and ".so.0." not in HIREDIS else ()),
        ("length", ctypes.c_size_t),
        ("text", ctypes.c_char_p),
    )


@pytest.mark.skipif(HIREDIS is None, reason="needs libhiredis")
async def test_hiredis_is_told_where_an_item_is_and_likes_it_there(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(HIREDIS))
    library.redisConnect.restype = ctypes.c_void_p
    library.redisCommand.restype = ctypes.POINTER(Reply)
    library.redisCommand.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.redisFree.argtypes = [ctypes.c_void_p]
    library.freeReplyObject.argtypes = [ctypes.c_void_p]

    def ask(port: int, *lines: bytes) -> list[Any]:
        connection = library.redisConnect(b"127.0.0.1", port)
        said: list[Any] = []
        for line in lines:
            reply = library.redisCommand(connection, line)
            found = reply.contents
            said.append(found.text if found.text else found.integer)
            library.freeReplyObject(reply)
        library.redisFree(connection)
        return said

    async with nodes(tmp_path, 1) as made:
        (moved,) = await asyncio.to_thread(ask, made.ports[1], b"SETBIT share:1000 2017 1")
        word, slot, address = moved.decode().split()
        assert (word, int(slot) < 16_384) == ("MOVED", True)
        lines = (b"SETBIT share:1000 2017 1", b"SETBIT share:1000 2017 1", b"BITCOUNT share:1000", b"PING")
        said = await asyncio.to_thread(ask, int(address.rpartition(":")[2]), *lines)
    assert said == [0, 1, 1, b"PONG"]
