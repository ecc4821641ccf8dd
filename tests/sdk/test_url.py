"""An address in one text: what is written is read again, what is wrong is told, and no error shows a token."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as some

import muster
import muster.testing
from muster import url
from muster.instance import Endpoint

KEY = "5a" * 32
HOSTS = some.sampled_from(["10.0.0.1", "::1", "2001:db8::7", "gateway.example"])
KEYS = some.binary(min_size=32, max_size=32).map(bytes.hex)
SERVERS = some.tuples(HOSTS, some.integers(1, 65_535), KEYS)


@given(some.lists(SERVERS, min_size=1, max_size=3), some.text(string.printable, max_size=60))
def test_what_is_written_is_read_again(gateways: list[Endpoint], token: str) -> None:
    text = url.text(gateways, token.encode())
    assert url.parse(text) == muster.Address(tuple(gateways), (), token.encode())
    assert text.isprintable()
    assert " " not in text


@given(SERVERS)
def test_a_server_is_read_with_its_key(known: Endpoint) -> None:
    host, port, key = known
    assert url.server(f"[{host}]:{port}:{key}" if ":" in host else f"{host}:{port}:{key}") == known


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("muster://10.0.0.1:7400", "invalid public key '' of 10.0.0.1:7400 (expected 64 hex digits"),
        ("muster://10.0.0.1:7400/5a5a?token=secret", "invalid public key '5a5a'"),
        (f"muster://10.0.0.1/{KEY}?token=secret", "missing HOST:PORT"),
        (f"muster://10.0.0.1:x/{KEY}?token=secret", "missing HOST:PORT"),
        (f"muster://10.0.0.1:70000/{KEY}?token=secret", "missing HOST:PORT"),
        (f"muster://user@10.0.0.1:7400/{KEY}?token=secret", "invalid URL (expected muster://HOST:PORT/KEY"),
        (f"muster://10.0.0.1:7400/{KEY}?token=secret&token=other", "more than one token"),
        (f"muster://10.0.0.1:7400/{KEY}?token=secret&ca=x", "unknown parameter 'ca'"),
        (f"muster://10.0.0.1:7400/{KEY}?gateway=10.0.0.2:7400&token=secret", "expected HOST:PORT:KEY"),
        (f"muster://10.0.0.1:7400/{KEY}?token", "invalid URL"),
        (f"muster://10.0.0.1:7400/{KEY}", "the URL has no token"),
    ],
)
async def test_a_mistake_is_one_line_without_the_token(text: str, said: str) -> None:
    with pytest.raises(muster.Invalid) as told:
        await muster.connect(text)
    assert said in str(told.value)
    assert "secret" not in str(told.value)


async def test_a_url_is_all_that_an_end_client_needs(address: muster.testing.Instance) -> None:
    text = url.text(address.gateways, address.token)
    async with muster.connect(text) as client, client.join("r") as room:
        await client.publish("r", json={"goal": 1})
        message = await anext(room)
        assert isinstance(message, muster.Message)
        assert (message.data, message.json()) == (b'{"goal":1}', {"goal": 1})
    async with muster.connect(url.text(address.gateways), token=address.token, proxies=()) as client:
        with pytest.raises(muster.Unavailable):
            await client.publish("r", b"x")
    with pytest.raises(muster.Invalid, match="a URL names the gateways"):
        await muster.connect(text, gateways=address.gateways)
