"""The first minute: what `muster up` shows on a terminal can be read, and what it names works in another shell."""

import asyncio
import os
import pty
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from muster_server.control.cli import up
from muster_server.control.cluster.instance import Folder
from muster_server.control.registry.directory import Directory
from tests.control.command import COMMAND, Command
from tests.documents import ROOT
from tests.fakes.memory import Memory
from tests.waiting import PATIENT_S


async def test_a_directory_that_is_closed_on_purpose_tells_of_no_lost_session() -> None:
    with capture_logs() as told:
        async with Directory(Memory().tree(), structlog.get_logger()):
            pass
        await asyncio.sleep(0)  # callbacks come in the next turn of the loop
        await asyncio.sleep(0)
    assert [line["session"] for line in told if line["event"] == "registry"] == ["connected"]


def test_on_a_terminal_up_shows_its_table_and_no_json(muster: Command) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "up", "--for", "1"], cwd=ROOT, env=muster.environment, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 1 << 16):
                said += piece
        except OSError:  # the other end is closed
            pass
        assert process.wait(PATIENT_S) == 0
    lines = said.decode().splitlines()
    assert any(line.startswith("gateway ") for line in lines)
    assert not [line for line in lines if line.startswith("{")]
    assert "expired" not in said.decode()
    assert len(lines) < 25
    assert "event" in (muster.folder / "logs" / "router+broker+gateway+proxy.log").read_text()


@pytest.mark.parametrize("found", [True, False])
def test_the_commands_of_the_banner_work_as_typed_in_another_shell(
    found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "the bin" / "muster"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$MUSTER_INSTANCE__DIR $*"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "argv", [str(program), "up"])
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    path = f"{program.parent}:/usr/bin:/bin" if found else "/usr/bin:/bin"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own, other = Folder(tmp_path / "muster", chosen=False), Folder(tmp_path / "an other")
    assert up.typed_as(own) == ("muster" if found else shlex.quote(str(program)))
    line = f"{up.typed_as(other)} sub demo"
    done = subprocess.run(["sh", "-c", line], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{other.path} sub demo\n"
