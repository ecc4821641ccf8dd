"""A run of pytest ends by one Ctrl-C, and leaves nothing behind."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.documents import ROOT
from tests.waiting import PATIENT_S, until

SWALLOWS = """
import asyncio, contextlib, os, signal

async def test_whose_code_swallows_it():
    with contextlib.suppress(asyncio.CancelledError):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

def test_that_comes_after_it():
    print("went on")
"""
LEAVES = """
import os, signal, subprocess
from tests import forked

def test_that_is_interrupted_while_a_command_waits(tmp_path):
    waits = forked.server("tests.fakes.command").start(["pub", "room"], os.environ, stdin=subprocess.PIPE)
    print("pid", waits.pid)
    os.kill(os.getpid(), signal.SIGINT)
"""


def run(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """A pytest of its own, with this file alone."""
    file = tmp_path / "test_it.py"
    file.write_text(text)
    words = [
        "-s",
        "-p",
        "tests.interrupt",
        "-p",
        "no:cacheprovider",
        "-o",
        "asyncio_mode=auto",
        "--rootdir",
        str(tmp_path),
    ]
    # Where this runs in the background of a shell, Ctrl-C would be ignored.
    code = (
        "import signal, sys, pytest; signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(pytest.main())"
    )
    command = [sys.executable, "-c", code, *words, str(file)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENT_S, check=False
    )


def test_ctrl_c_that_a_test_swallows_ends_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, SWALLOWS)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "went on" not in done.stdout


async def test_ctrl_c_beside_a_running_command_ends_that_too(tmp_path: Path) -> None:
    done = await asyncio.to_thread(run, tmp_path, LEAVES)
    assert done.returncode == 2, done.stdout + done.stderr
    (pid,) = re.findall(r"pid (\d+)", done.stdout)

    def has_ended() -> bool:
        try:
            return "(zombie)" in Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return True

    await until(has_ended)
