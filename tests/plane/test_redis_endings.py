"""Connections of redis-py that have ended, on uvloop."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis.exceptions import ConnectionError as Unreachable

from muster.redis.connections import opened
from muster.redis.where import parsed
from tests.redis_server import RedisServer
from tests.waiting import until

ENDS_S = 10.0


class Closed:
    """What uvloop's transport says under a stream that was closed."""

    def writelines(self, _: Any) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    def close(self) -> None:
        """As a stream's."""

    async def wait_closed(self) -> None:
        """As a stream's."""


@pytest.mark.parametrize(
    "url",
    [
        "redis://a:1/0",
        "rediss://me@a:1",
        "redis+sentinel://a:2,b:2/main",
        "rediss+sentinel://a:2/main",
        "redis+cluster://a:3,b:3",
        "rediss+cluster://a:3",
    ],
)
async def test_every_form_of_a_client_says_that_its_connection_ended(url: str) -> None:
    client, close = opened(parsed(url), "word", 1.0)
    if "cluster" in url:
        (node, *_) = client.startup_nodes
        connection = node.connection_class(**node.connection_kwargs)
        assert client.nodes_manager.connection_kwargs["connection_class"] is node.connection_class
    else:
        connection = client.connection_pool.make_connection()
    connection._reader, connection._writer = asyncio.StreamReader(), Closed()  # as after `connect`
    with pytest.raises(Unreachable, match="the connection to the Redis ended"):
        await connection.send_command("PING")
    assert not connection.is_connected
    await close()


async def test_a_connection_that_another_task_closes_before_a_write_says_so() -> None:
    client, close = opened(parsed("redis://a:1/0"), "", 1.0)
    connection = client.connection_pool.make_connection()
    connection._reader, connection._writer = asyncio.StreamReader(), Closed()
    writing = asyncio.create_task(connection.send_command("PING"))
    await asyncio.sleep(0)  # redis-py has seen that it is connected, and writes with the next turn of the loop
    await connection.disconnect(nowait=True)
    with pytest.raises(Unreachable, match="closed by another task"):
        await writing
    await close()


async def test_a_closed_client_of_a_cluster_leaves_no_connection_to_a_node_that_has_left() -> None:
    client, close = opened(parsed("redis+cluster://a:3"), "", 1.0)
    (node, *_) = client.startup_nodes
    connection = node.connection_class(**node.connection_kwargs)  # of a node that the client has forgotten
    connection._reader, connection._writer = asyncio.StreamReader(), Closed()
    assert connection.is_connected
    await close()
    assert not connection.is_connected


def test_a_write_after_a_real_end_is_told_so_on_uvloop_and_the_next_call_works(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis").start()

    async def run() -> None:
        client, close = opened(parsed(server.url), "", 2.0)
        assert await client.ping()
        connection = await client.connection_pool.get_connection()
        connection._writer.transport.abort()
        await connection._writer.wait_closed()
        with pytest.raises(Unreachable, match="the handler is closed"):
            await connection.send_command("PING")
        await client.connection_pool.release(connection)
        assert await client.ping()
        await close()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    finally:
        server.end()


async def test_each_connection_of_a_pool_is_replaced_once_a_server_has_started_again(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis").start()
    client, close = opened(parsed(server.url), "", 2.0)
    try:
        together = [client.ping() for _ in range(6)]
        assert await asyncio.gather(*together) == [True] * 6
        ends = [connection._reader for connection in client.connection_pool._available_connections]
        assert len(ends) == 6
        server.kill()
        await until(lambda: all(end.at_eof() or end.exception() for end in ends))
        await asyncio.to_thread(server.start)
        assert await asyncio.gather(*(client.ping() for _ in range(6))) == [True] * 6
    finally:
        await close()
        server.end()


async def test_a_task_that_is_cancelled_as_its_command_is_sent_ends(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis").start()
    client, close = opened(parsed(server.url), "", 10.0)

    async def steps() -> None:
        while True:
            await client.ping()

    async def sent(command: Any) -> None:
        connection._send_packed_command = send
        await send(command)
        stepping.cancel()

    try:
        assert await client.ping()
        (connection,) = client.connection_pool._available_connections
        send, connection._send_packed_command = connection._send_packed_command, sent
        stepping = asyncio.create_task(steps())
        await asyncio.wait([stepping], timeout=ENDS_S)
        assert stepping.cancelled()
        assert await client.echo("whole") == b"whole"  # the answer to the command before is not taken for this one's
    finally:
        stepping.cancel()
        await close()
        server.end()
