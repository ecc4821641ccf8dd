"""One user's bounds as its programs see them: they wait, lose nothing, and are told the limit and how long it lasts."""

import asyncio
import re

import pytest

import muster
import muster.testing
from tests.sdk.items import next_of
from tests.waiting import PATIENT_S

RATE = 100
ANN = b"ann's"


async def test_a_publisher_above_its_users_rate_is_told_the_limit_and_loses_nothing() -> None:
    async with muster.testing.instance(tokens={ANN: 7}) as address, muster.connect(address, token=ANN) as client:
        address._engines["proxy"].settings(b'{"user_message_rate": %d, "user_byte_rate": 0}' % RATE)
        async with client.join("r") as room:
            began = asyncio.get_running_loop().time()
            for number in range(2 * RATE):
                while not client.publish_nowait("r", b"%d" % number):
                    await client.writable("r")
            with pytest.raises(muster.TimedOut, match=r"\(rate_limited; user_message_rate, user_byte_rate\)") as told:
                await client.publish("r", b"late", timeout=0.3)
            assert re.search(r"; try again in \d\.\d s$", str(told.value))
            await client.flush(PATIENT_S)
            took = asyncio.get_running_loop().time() - began
            assert took > 0.9, "as many as come in a second, beyond those that were saved"
            had = [(await next_of(room, muster.Message)).data for _ in range(2 * RATE)]
            assert had == [b"%d" % number for number in range(2 * RATE)]


async def test_a_user_with_too_many_sessions_is_told_so_and_comes_in_when_one_ends() -> None:
    async with muster.testing.instance(tokens={ANN: 7}) as address:
        address._engines["gateway"].settings(b'{"user_sessions_max": 1}')
        async with muster.connect(address, token=ANN, proxies=()):
            with pytest.raises(muster.TimedOut, match=r"refuses a further session of this user \(rate_limited"):
                async with muster.connect(address, token=ANN, proxies=(), timeout=1.0):
                    pass
        async with muster.connect(address, token=ANN, proxies=(), timeout=PATIENT_S) as client, client.join("r"):
            pass


async def test_a_user_in_too_many_rooms_is_refused_another_one_by_any_client() -> None:
    async with (
        muster.testing.instance(tokens={ANN: 7}) as address,
        muster.connect(address, token=ANN) as one,
        muster.connect(address, token=ANN) as other,
    ):
        address._engines["gateway"].settings(b'{"user_rooms_max": 2}')
        async with one.join("a"), other.join("a"):
            with pytest.raises(muster.Refused, match="user_rooms_max") as refused:
                async with other.join("b"):
                    pass
            assert refused.value.code == "too_many_rooms"
        async with other.join("b"):
            pass
