"""`muster command`: each outcome has an exit code of its own, and a word in JSON."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import muster
from muster_server.control.cli import main as cli
from muster_server.control.cluster import instance

ROOM = ["command", "room", "text"]


class Client:
    def __init__(self, comes: muster.Outcome | BaseException) -> None:
        self._comes = comes

    async def command(self, room: str, data: bytes, *, expires: float) -> muster.Outcome:
        if isinstance(self._comes, BaseException):
            raise self._comes
        return self._comes


def sends(monkeypatch: pytest.MonkeyPatch, comes: muster.Outcome | BaseException) -> None:
    @asynccontextmanager
    async def connect(*_place: Any, **_options: Any) -> AsyncIterator[Client]:
        yield Client(comes)

    monkeypatch.setattr(muster, "connect", connect)
    monkeypatch.setattr(instance, "find", lambda place: None)


@pytest.mark.parametrize(
    ("comes", "code", "outcome", "words"),
    [
        (muster.Delivered(2), 0, {"outcome": "delivered", "members": 2}, "delivered to 2 members"),
        (muster.NoMember(), 3, {"outcome": "no_member", "members": 0}, "the room has no member"),
        (muster.Expired(1), 4, {"outcome": "expired", "members": 1}, "expired; 1 member had confirmed it"),
    ],
)
def test_each_outcome_has_a_code_of_its_own(
    comes: muster.Outcome,
    code: int,
    outcome: dict[str, Any],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sends(monkeypatch, comes)
    assert cli.main(ROOM) == code
    assert capsys.readouterr().out == f"{words}\n"
    assert cli.main([*ROOM, "--json"]) == code
    assert json.loads(capsys.readouterr().out) == outcome


@pytest.mark.parametrize(
    ("comes", "code"),
    [
        (muster.Refused("command", "rate_limited", 1.0), 75),
        (muster.Refused("command", "busy"), 75),
        (muster.Refused("session", "bad_credential"), 1),
        (muster.TooLong("the command is too long"), 2),
        (muster.TimedOut("connect: no answer"), 75),
        (muster.Unavailable("no instance"), 69),
    ],
)
def test_what_was_not_sent_has_the_code_of_its_cause(
    comes: muster.MusterError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sends(monkeypatch, comes)
    assert cli.main(ROOM) == code
    assert capsys.readouterr() == ("", f"muster: {comes}\n")
    assert cli.main([*ROOM, "--json"]) == code
    said = capsys.readouterr()
    assert json.loads(said.out) == {"outcome": "failed", "error": str(comes)}
    assert said.err == f"muster: {comes}\n"


def test_who_is_interrupted_does_not_know(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from muster_server.control.terminal.found import Target
    from muster_server.systems.rooms.cli.tell import command

    sends(monkeypatch, asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(command(Target(), "room", "text", 5.0, True))
    assert json.loads(capsys.readouterr().out) == {"outcome": "unknown", "error": "interrupted"}


def test_without_an_instance_there_is_a_document_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_INSTANCE__DIR", str(tmp_path))
    assert cli.main([*ROOM, "--json"]) == 69
    assert json.loads(capsys.readouterr().out)["outcome"] == "failed"
