"""A command that streams ends when nobody reads its stdout any more, also while nothing comes."""

import os
import socket
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from muster_server.control.cli import main as cli
from muster_server.control.terminal import common
from tests.waiting import PATIENT_S

WAITS = """
import asyncio, sys
from muster_server.control.terminal.common import run
async def work():
    print("begun", flush=True)
    await asyncio.Event().wait()
sys.exit(run(work(), streams=True))
"""


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_stream_ends_when_its_reader_has_left_though_nothing_more_comes(kind: str) -> None:
    if kind == "pipe":
        ours, theirs = os.pipe()
    else:
        ours, theirs = (end.detach() for end in socket.socketpair())
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        try:
            said = b""
            while not said.endswith(b"\n"):  # unbuffered, Python writes the end of a line by itself
                said += os.read(ours, 100)
            assert said == b"begun\n"
            os.close(ours)
            _, said = process.communicate(timeout=PATIENT_S)
        finally:
            process.kill()
    assert (process.returncode, said) == (0, b"")


@pytest.mark.parametrize(
    "words",
    [
        ("sub", "room"),
        ("sub", "room", "--count", "3"),
        ("rooms", "sub", "room"),
        ("top", "--for", "9"),
        ("top", "--json", "--for", "9"),
        ("links", "--watch"),
        ("cluster", "show", "--watch"),
    ],
)
def test_each_command_that_streams_is_run_as_one(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def noted(work: Coroutine[Any, Any, int], *, endless: bool = False, streams: bool = False) -> int:
        work.close()
        asked.append(streams)
        return 0

    monkeypatch.setattr(common, "run", noted)
    assert cli.main(list(words)) == 0
    assert asked == [True]
