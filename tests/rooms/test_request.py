"""`muster rooms request` and `respond`: each outcome has an exit code of its own; and `muster.request` of an edge."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import muster
import muster.testing
from muster.requests import REQUEST_S_MAX
from muster_server._engines import Grant
from muster_server.control.cli import main as cli
from muster_server.control.cluster import instance
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec, SpecError
from muster_server.plane.ways import CallRefused
from muster_server.systems.rooms.calls import REQUEST_S, RequestCalls, request
from muster_server.systems.rooms.calls import REQUEST_S_MAX as EDGE_S_MAX

WORDS = ["rooms", "request", "prices", "EUR"]
ALL = Grant([("*", ["publish"])])


class Client:
    def __init__(self, comes: muster.Reply | BaseException) -> None:
        self._comes = comes

    async def request(self, room: str, data: bytes, *, timeout: float) -> muster.Reply:
        assert (room, data, timeout) == ("prices", b"EUR", 5.0)
        if isinstance(self._comes, BaseException):
            raise self._comes
        return self._comes


def replied(data: bytes) -> muster.Reply:
    """A reply of the responder `5f`."""
    return muster.Reply("prices", "5f", 1, data)


@pytest.mark.parametrize(
    ("comes", "code", "document", "words"),
    [
        (replied(b"1.09"), 0, {"outcome": "replied", "responder": "5f", "data": "1.09"}, "1.09"),
        (replied(b"\xff"), 0, {"outcome": "replied", "responder": "5f", "data_base64": "/w=="}, "\\xff"),
        (replied(b"\x1b[2J"), 0, {"outcome": "replied", "responder": "5f", "data": "\x1b[2J"}, "\\x1b[2J"),
        (muster.NoResponders("none"), 3, {"outcome": "no_responders"}, "the room has no responder"),
        (muster.TimedOut("request to prices: late"), 4, {"outcome": "timeout"}, "request to prices: late"),
        (muster.ResponderFailed("no", "failed"), 1, {"outcome": "failed", "reason": "failed"}, "no (failed)"),
    ],
)
def test_each_outcome_has_a_code_of_its_own(
    comes: muster.Reply | BaseException,
    code: int,
    document: dict[str, Any],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @asynccontextmanager
    async def connect(*_place: Any, **_options: Any) -> AsyncIterator[Client]:
        yield Client(comes)

    monkeypatch.setattr(muster, "connect", connect)
    monkeypatch.setattr(instance, "find", lambda place: None)
    assert cli.main(WORDS) == code
    assert capsys.readouterr().out == f"{words}\n"
    assert cli.main([*WORDS, "--json"]) == code
    assert json.loads(capsys.readouterr().out) == document


def test_mistakes_are_told_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_INSTANCE__DIR", str(tmp_path))
    assert cli.main(WORDS) == 69
    for wrong in ("0", str(REQUEST_S_MAX + 1)):
        assert cli.main([*WORDS, "--timeout", wrong]) == 2
    assert cli.main(["rooms", "respond", "prices"]) == 69
    capsys.readouterr()


# --- at an edge -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(tmp_path: Path) -> AsyncIterator[tuple[muster.testing.Instance, RequestCalls]]:
    """What an edge of an instance answers with."""
    async with muster.testing.instance() as address:
        token = tmp_path / "token"
        token.write_bytes(address.token)
        spec = SimpleNamespace(
            token_file=str(token), servers={"gateway": [*address.gateways], "proxy": [*address.proxies]}
        )
        calls = request(cast(Spec, spec), Context(cast(Any, None), lambda: None, lambda: None))
        try:
            yield address, calls
        finally:
            await calls.close()


def data(**said: Any) -> bytes:
    """The data of a call, with the longest time unless it says another."""
    return json.dumps({"room": "prices", "timeout": EDGE_S_MAX} | said).encode()


async def answer(calls: RequestCalls, user: int, data: bytes, grant: Grant = ALL) -> dict[str, Any]:
    """The answer of a call, which is counted by its outcome."""
    outcome, said = await calls.answer(user, grant, data)
    answered: dict[str, Any] = json.loads(said)
    assert outcome == answered["outcome"]
    assert outcome in calls.outcomes
    return answered


async def test_a_call_is_a_request_of_the_clients_user(tmp_path: Path) -> None:
    seen: list[tuple[int, bytes]] = []
    replies: dict[bytes, Callable[[], bytes]] = {b'"binary"': lambda: b"\xff", b'"fail"': lambda: b"x" * 50_000}

    async def handler(asked: muster.Request) -> bytes:
        seen.append((asked.sender, asked.data))
        if asked.data == b'"wait"':
            await asyncio.get_running_loop().create_future()
        return replies.get(asked.data, lambda: b'{"eur": 1}')()

    async with answering(tmp_path) as (address, calls):
        assert await answer(calls, 7, data()) == {"outcome": "no_responders"}
        async with muster.connect(address) as member, member.respond("prices", handler):
            assert await answer(calls, 1 << 63, data(data={"usd": 2})) == {"outcome": "replied", "data": {"eur": 1}}
            assert seen == [(1 << 63, b'{"usd": 2}')]
            assert await answer(calls, 7, data(data="binary")) == {
                "outcome": "replied",
                "data": "/w==",
                "encoding": "base64",
            }
            assert await answer(calls, 7, data(data="fail")) == {"outcome": "failed", "reason": "too_long"}
            assert await answer(calls, 7, data(data="wait", timeout=0.2)) == {"outcome": "timeout"}
            await member.close()
    assert REQUEST_S < EDGE_S_MAX


async def test_a_call_needs_the_right_to_publish_in_the_room_of_requests(tmp_path: Path) -> None:
    async with answering(tmp_path) as (_, calls):
        for grant in (
            Grant([("*", ["read", "members"])]),
            Grant([("prices", ["publish"])]),
            Grant([("prices/*", ["read"]), ("*", ["publish"])]),
        ):
            with pytest.raises(CallRefused) as refused:
                await calls.answer(7, grant, data())
            assert refused.value.failure == "not_allowed"
        assert await answer(calls, 7, data(), Grant([("prices/*", ["publish"])])) == {"outcome": "no_responders"}


async def test_a_malformed_call_is_refused(tmp_path: Path) -> None:
    async with answering(tmp_path) as (_, calls):
        for wrong in (
            b"",
            b"[]",
            b"\xff",
            b"[" * 100_000,
            data(room=""),
            data(room="r" * 155),
            data(room=7),
            data(timeout=0),
            data(timeout=EDGE_S_MAX + 1),
            data(user="8"),
            data(data="x" * 48_000),
        ):
            with pytest.raises(CallRefused) as refused:
                await calls.answer(7, ALL, wrong)
            assert refused.value.failure == "bad_request", wrong[:80]


async def test_without_servers_a_call_fails_and_a_spec_needs_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(b"x")
    context = Context(cast(Any, None), lambda: None, lambda: None)
    calls = request(cast(Spec, SimpleNamespace(token_file=str(token), servers={})), context)
    with pytest.raises(CallRefused) as refused:
        await calls.answer(7, ALL, data())
    assert refused.value.failure == "internal"
    await calls.close()
    with pytest.raises(SpecError):
        request(cast(Spec, SimpleNamespace(token_file=None)), context)
