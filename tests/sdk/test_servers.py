"""A client learns servers from servers: it is given one, and has the others from that."""

import pytest

import muster
import muster.testing


async def test_one_gateway_is_enough_to_read_publish_and_command(address: muster.testing.Instance) -> None:
    known, token = address.gateways, address.token
    async with (
        muster.connect(gateways=known, token=token) as reader,
        muster.connect(gateways=known, token=token) as writer,
        reader.join("room") as room,
    ):
        await writer.publish("room", b"one")
        assert writer.publish_nowait("room", b"two")
        messages = [await anext(room) for _ in range(2)]
        assert [message.data for message in messages if isinstance(message, muster.Message)] == [b"one", b"two"]
        command = await anext_command(room, writer)
        assert command == b"go"
        assert (await writer.members("room")).count == 1


async def anext_command(room: muster.Room, writer: muster.Client) -> bytes:
    """Send a command, and return the one that the member read."""
    assert isinstance(await writer.command("room", b"go"), muster.Delivered)
    item = await anext(room)
    assert isinstance(item, muster.Command)
    return item.data


async def test_one_proxy_is_enough_to_read(address: muster.testing.Instance) -> None:
    async with muster.connect(proxies=address.proxies, token=address.token) as client, client.join("room") as room:
        await client.publish("room", b"one")
        item = await anext(room)
        assert isinstance(item, muster.Message)


async def test_an_empty_list_opens_no_session_whatever_servers_say(address: muster.testing.Instance) -> None:
    async with muster.connect(gateways=address.gateways, proxies=[], token=address.token) as client:
        async with client.join("room"):
            pass
        with pytest.raises(muster.Unavailable, match="no proxy"):
            await client.publish("room", b"one")


async def test_a_server_that_nobody_names_is_said_to_be_unknown(address: muster.testing.Instance) -> None:
    engine = address._engine("gateway")
    engine.servers([], [])
    async with muster.connect(gateways=address.gateways, token=address.token) as client:
        with pytest.raises(muster.TimedOut, match="the proxy is not known: no server has named one"):
            await client.publish("room", b"one", timeout=0.2)
        engine.servers([], [address._named("proxy")])
        await client.publish("room", b"two")


async def test_a_program_that_learns_of_other_servers_tells_its_client_which_goes_on_there() -> None:
    tokens = {b"secret": 1}
    async with muster.testing.instance(tokens=tokens) as before, muster.testing.instance(tokens=tokens) as now:
        async with muster.connect(before, gateways=()) as client, muster.connect(now) as reader:
            await client.publish("room", b"there")
            async with reader.join("room") as room:
                client.redirect(now)
                client.redirect(muster.Address((), (), b"secret"))
                before.stop("proxy")
                await client.publish("room", b"here")
                item = await anext(room)
                assert isinstance(item, muster.Message)
                assert item.data == b"here"
        with pytest.raises(muster.Closed):
            client.redirect(now)
