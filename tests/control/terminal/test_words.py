"""Lines for people come whole, although threads write there too."""

import os
import socket
import subprocess
import sys

import pytest

from tests.waiting import PATIENT_S

SAYS = "from muster_server.control.terminal.words import say; say('interrupted')"
FAILS = "from muster_server.control.cli.main import fail; fail('no\\nsuch  room', 1)"
LOGS = "from muster_server.control.terminal.common import errors_alone; errors_alone().error('gone')"


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    ("script", "line"), [(SAYS, b"interrupted\n"), (FAILS, b"muster: no such room\n"), (LOGS, b"gone\n")]
)
def test_a_line_is_one_piece(script: str, line: bytes, buffered: bool) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with ours:
        with theirs:
            subprocess.run(
                [sys.executable, *(() if buffered else ("-u",)), "-c", script],
                stderr=theirs.fileno(),
                env=environment,
                timeout=PATIENT_S,
                check=True,
            )
        pieces = list(iter(lambda: ours.recv(4_096), b""))
    assert len(pieces) == 1
    assert pieces[0].endswith(line)
