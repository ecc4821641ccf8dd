"""Rights by room, and the end of a token: what a program gets, at the real engines."""

import asyncio
from collections.abc import Sequence

import pytest

import muster
import muster.testing
from muster.testing import User
from tests.waiting import PATIENT_S, until

ANN, LATER = b"ann's", b"ann's next"
ROOM, PRIVATE = "sports:final", "chat:8"


def cap(*words: str) -> dict[bytes, int | User]:
    """Ann with these rights in the rooms of `sports`, and a program with all."""
    return {ANN: User(7, {"sports:*": words}), b"all": 1}


async def code(call: object) -> str:
    """The code with which a call is refused."""
    with pytest.raises(muster.Refused) as told:
        await call  # type: ignore[misc]
    return told.value.code


async def test_a_reader_joins_no_room_but_its_own_and_asks_for_no_history() -> None:
    """Found: a token with the right to read joined another user's private room."""
    async with (
        muster.testing.instance(tokens=cap("read")) as address,
        muster.connect(address, proxies=[]) as client,
        client.join(ROOM) as room,
    ):
        assert room.name == ROOM
        assert await code(client.join(PRIVATE)) == "not_allowed"
        assert await code(client.join("sportsbook:final")) == "not_allowed"
        assert await code(client.join("sports:semi", history=5)) == "not_allowed"


@pytest.mark.parametrize("words", [("publish",), ("command",), ("members",)])
async def test_a_proxy_does_what_the_rights_of_the_room_say(words: Sequence[str]) -> None:
    async with (
        muster.testing.instance(tokens=cap(*words), command_burst=5) as address,
        muster.connect(address, gateways=[]) as client,
    ):

        async def does(word: str, room: str) -> str:
            try:
                match word:
                    case "publish":
                        await client.publish(room, b"x")
                    case "command":
                        await client.command(room, b"x")
                    case _:
                        await client.members(room)
            except muster.Refused as refused:
                return refused.code
            return word

        for word in ("publish", "command", "members"):
            assert await does(word, ROOM) == (word if word in words else "not_allowed")
            assert await does(word, PRIVATE) == "not_allowed"


async def test_a_session_goes_on_with_the_next_token_and_nothing_is_lost() -> None:
    tokens: dict[bytes, int | User] = {ANN: User(7, seconds=1.2), LATER: User(7, seconds=60)}
    left = iter([ANN, LATER])

    async def fetch() -> bytes:
        return next(left)

    async with (
        muster.testing.instance(tokens=tokens) as address,
        muster.connect(address, token=fetch) as client,
        client.join(ROOM) as room,
    ):
        loop = asyncio.get_running_loop()
        end, number = loop.time() + 2.5, 0
        while loop.time() < end:  # beyond the end of the first token
            await client.publish(ROOM, str(number).encode())
            item = await anext(room)
            assert not isinstance(item, muster.Gap)
            assert item.data == str(number).encode()
            number += 1
            await asyncio.sleep(0.05)
        assert client.stats()["sessions_lost"] == 0
        counters = address.status("gateway")["counters"]
        assert (counters["sessions_renewed"], counters["sessions_token_ended"]) == (1, 0)


async def test_a_session_ends_with_its_token_where_there_is_no_other() -> None:
    """Found: an open session outlived its token for ever."""
    async with (
        muster.testing.instance(tokens={ANN: User(7, seconds=0.5)}) as address,
        muster.connect(address) as client,
        client.join(ROOM) as room,
        asyncio.timeout(PATIENT_S),
    ):
        with pytest.raises(muster.Refused) as told:
            await anext(room)
        assert told.value.code == "bad_credential"
        await until(lambda: address.status("proxy")["counters"]["sessions_token_ended"] == 1)
