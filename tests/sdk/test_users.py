"""Users: limits count by user, over all clients, and a client can fetch its own token."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

import muster
import muster.client
import muster.testing
import muster.tokens
from tests.sdk.items import next_of
from tests.waiting import PATIENT_S, until

ANN, BOB, ANN_LATER = b"ann's", b"bob's", b"ann's, of today"
TOKENS = {ANN: 7, BOB: 8, ANN_LATER: 7}


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[muster.testing.Instance]:
    async with muster.testing.instance(tokens=TOKENS) as address:
        yield address


def ends(address: muster.testing.Instance, token: bytes) -> None:
    """It opens no session any more, and its open sessions are lost."""
    del address._tokens[token]
    address.restart("gateway")
    address.restart("proxy")


def one_after_the_other(*answers: bytes | Exception) -> Callable[[], Awaitable[bytes]]:
    """Returns these tokens, and raises these errors."""
    left = iter(answers)

    async def fetch() -> bytes:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return fetch


async def test_a_user_has_one_command_a_second_by_whatever_client() -> None:
    async with (
        running() as address,
        muster.connect(address, token=ANN) as one,
        muster.connect(address, token=ANN) as other,
        muster.connect(address, token=BOB) as bob,
    ):
        assert await one.command("r", b"first") == muster.NoMember()
        with pytest.raises(muster.Refused) as told:
            await other.command("r", b"second")
        assert (told.value.code, told.value.retry) == ("rate_limited", True)
        assert told.value.retry_after is not None
        assert 0 < told.value.retry_after < 1.1
        assert await bob.command("r", b"another user's") == muster.NoMember()
        await asyncio.sleep(told.value.retry_after)
        assert await other.command("r", b"second") == muster.NoMember()


async def test_a_user_who_comes_by_another_session_has_no_more() -> None:
    async with running() as address:
        async with muster.connect(address, token=ANN) as client:
            assert await client.command("r", b"first") == muster.NoMember()
        async with muster.connect(address, token=ANN) as client:
            with pytest.raises(muster.Refused):
                await client.command("r", b"second")


async def test_clients_of_the_shared_token_are_limited_one_by_one(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as one, muster.connect(address) as other:
        assert await one.command("r", b"x") == await other.command("r", b"x") == muster.NoMember()
        with pytest.raises(muster.Refused):
            await one.command("r", b"x")


async def test_a_token_whose_time_is_over_ends_a_client_that_has_no_other() -> None:
    async with running() as address, muster.connect(address, token=ANN) as client, client.join("r") as room:
        ends(address, ANN)
        with pytest.raises(muster.Refused, match="has expired") as told:
            async with asyncio.timeout(PATIENT_S):
                await anext(room)
        assert (told.value.code, told.value.retry) == ("bad_credential", False)
        async with asyncio.timeout(PATIENT_S):  # the proxy refuses it once it is there again
            with pytest.raises(muster.Refused, match="bad_credential"):
                await client.publish("r", b"x")


async def test_a_token_whose_time_is_over_ends_a_client_whose_instance_changes_its_other_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as address, running() as other:
        proxies = [address.proxies + other.proxies, other.proxies + address.proxies]

        def find(_folder: object) -> muster.Address:
            proxies.reverse()  # a new one at each look
            return muster.Address(address.gateways, proxies[0], ANN)

        monkeypatch.setattr(muster.client, "find", find)
        async with muster.connect() as client, client.join("r") as room:
            ends(address, ANN)
            with pytest.raises(muster.Refused, match="bad_credential"):
                async with asyncio.timeout(PATIENT_S):
                    await anext(room)


async def test_both_sessions_go_on_where_their_instance_has_become_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as address, running() as other:
        known = address
        monkeypatch.setattr(muster.client, "find", lambda _folder: known)
        async with muster.connect() as client:
            known = other
            client._on_events([("down", 0, "not_allowed", False), ("down", 1, "not_allowed", False)])
            async with client.join("r") as room, asyncio.timeout(PATIENT_S):
                await client.publish("r", b"still")
                assert not isinstance(item := await anext(room), muster.Gap)
                assert item.data == b"still"


async def test_a_client_that_is_given_a_function_asks_it_again_when_its_token_opens_nothing() -> None:
    tokens: Iterator[bytes | str] = iter([ANN, ANN_LATER.decode()])
    asked = 0

    async def fetch() -> bytes | str:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return next(tokens)

    async with running() as address, muster.connect(address, token=fetch) as client, client.join("r") as room:
        await client.publish("r", b"before")
        assert (await next_of(room, muster.Message)).data == b"before"
        address.restart("gateway")
        await client.publish("r", b"with the same token")
        assert (await next_of(room, muster.Message)).data == b"with the same token"
        assert asked == 1
        ends(address, ANN)
        await client.publish("r", b"after")
        message = await next_of(room, muster.Message)
        assert (message.data, message.sender) == (b"after", 7)
        assert asked == 2


@pytest.mark.parametrize("later", [ANN, b"nobody's"], ids=["the same", "another bad one"])
async def test_a_fresh_token_that_opens_nothing_is_the_end(later: bytes) -> None:
    fetch = one_after_the_other(ANN, later)
    async with running() as address, muster.connect(address, token=fetch) as client, client.join("r") as room:
        ends(address, ANN)
        with pytest.raises(muster.Refused, match="bad_credential"):
            async with asyncio.timeout(PATIENT_S):
                await anext(room)


async def test_a_function_that_fails_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muster.tokens, "AGAIN_S", 0.01)
    fetch = one_after_the_other(ANN, OSError("away"), muster.Unavailable("away"), ANN_LATER)
    async with running() as address, muster.connect(address, token=fetch) as client:
        ends(address, ANN)
        await client.publish("r", b"x", timeout=PATIENT_S)


async def test_another_token_keeps_the_servers_that_a_client_learned_of() -> None:
    fetch = one_after_the_other(ANN, ANN_LATER)
    async with running() as address, muster.connect(gateways=address.gateways, token=fetch) as client:
        await client.publish("r", b"x")
        del address._tokens[ANN]
        address.restart("proxy")
        await client.publish("r", b"y", timeout=PATIENT_S)
        assert await client.command("r", b"z") == muster.NoMember()


async def test_a_server_that_is_not_believed_ends_nothing_though_the_function_has_no_other_token() -> None:
    """A learned server whose clock is wrong: the client tries others meanwhile."""
    asked = 0

    async def fetch() -> bytes:
        nonlocal asked
        asked += 1
        return ANN

    async with running() as address, muster.connect(address, token=fetch) as client, client.join("r") as room:
        for _ in range(2):
            before = asked
            client._on_events([("down", 0, "bad_credential", True), ("down", 1, "bad_credential", True)])
            await until(lambda: client._tokens.renewing is not None and client._tokens.renewing.done())
            assert asked == before + 1
            await client.publish("r", b"x")
            assert (await next_of(room, muster.Message)).data == b"x"


async def test_a_function_whose_wait_is_cancelled_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muster.tokens, "AGAIN_S", 0.01)
    refreshed, given = asyncio.Event(), iter([ANN, None, ANN_LATER])

    async def fetch() -> bytes:
        token = next(given)
        if token is None:
            shared = asyncio.ensure_future(refreshed.wait())
            shared.cancel()
            await shared
        return token or b""

    async with running() as address, muster.connect(address, token=fetch) as client:
        ends(address, ANN)
        await client.publish("r", b"x", timeout=PATIENT_S)


@pytest.mark.parametrize("hides", [OSError, None])
async def test_a_function_that_hides_the_end_of_its_client_is_asked_no_more(
    monkeypatch: pytest.MonkeyPatch, hides: type[OSError] | None
) -> None:
    monkeypatch.setattr(muster.tokens, "AGAIN_S", 0.01)
    asked = 0

    async def fetch() -> bytes:
        nonlocal asked
        asked += 1
        if asked > 1:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                if hides is not None:
                    raise hides("away") from None
        return ANN

    async with running() as address:
        async with muster.connect(address, token=fetch) as client:
            ends(address, ANN)
            await until(lambda: asked == 2)
            renewing = client._tokens.renewing
        assert renewing is not None
        await until(renewing.done)
        assert asked == 2


async def test_a_client_whose_token_was_refused_goes_on_when_it_is_given_another() -> None:
    async with running() as address, muster.connect(address, token=ANN) as client, client.join("r") as room:
        await client.publish("r", b"before")
        assert (await next_of(room, muster.Message)).data == b"before"
        ends(address, ANN)
        async with asyncio.timeout(PATIENT_S):
            with pytest.raises(muster.Refused):
                await anext(room)
            with pytest.raises(muster.Refused):
                await client.publish("r", b"refused")
        client.redirect(muster.Address((), (), ANN_LATER))
        async with asyncio.timeout(PATIENT_S):
            await client.publish("r", b"after")
            while (await next_of(room, muster.Message)).data != b"after":
                pass


async def test_a_function_that_says_no_is_the_end() -> None:
    fetch = one_after_the_other(ANN, muster.Closed("logged out"))
    async with running() as address, muster.connect(address, token=fetch) as client, client.join("r") as room:
        ends(address, ANN)
        with pytest.raises(muster.Closed, match="logged out"):
            async with asyncio.timeout(PATIENT_S):
                await anext(room)


async def test_what_gives_no_token_at_the_start_opens_nothing() -> None:
    async def never() -> bytes:
        await asyncio.Event().wait()
        return b""

    async def fails() -> bytes:
        raise LookupError("no such user")

    async with running() as address:
        with pytest.raises(muster.TimedOut, match="token"):
            await muster.connect(address, token=never, timeout=0.05)
        with pytest.raises(LookupError):
            await muster.connect(address, token=fails)
        with pytest.raises(muster.Refused):
            await muster.connect(address, token=b"nobody's")


async def test_a_credential_has_at_most_a_thousand_bytes() -> None:
    longest = b"x" * 1_000
    async with muster.testing.instance(tokens={longest: 7}) as address:
        async with muster.connect(address, token=longest) as client:
            await client.publish("r", b"x")
        with pytest.raises(muster.Invalid, match="1,000 bytes"):
            await muster.connect(address, token=longest + b"x")
