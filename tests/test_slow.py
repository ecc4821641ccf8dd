"""`scripts/slow.py`: each process of a command has a fifth of a processor, and none outlives it."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.documents import ROOT
from tests.waiting import PATIENT_S, wait_for

SLOW: Final = (sys.executable, str(ROOT / "scripts/slow.py"))
CPU_S: Final = 0.2
SPENDS: Final = f"""
import os, time
began = time.monotonic()
while time.process_time() < {CPU_S}: pass
print(time.monotonic() - began)
"""


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*SLOW, *words], capture_output=True, text=True, timeout=PATIENT_S, check=False)


@pytest.fixture(autouse=True)
def groups() -> None:
    """Skips where no control groups can be made, and below `scripts/slow.py`, which would take the processes for its own."""
    if "/slow-" in Path("/proc/self/cgroup").read_text():
        pytest.skip("runs below scripts/slow.py")
    done = run("true")
    if done.returncode == 2 and "no control groups" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def test_a_process_and_its_child_have_a_fifth_each_and_the_command_s_exit_code_is_kept(tmp_path: Path) -> None:
    program = tmp_path / "spends.py"
    program.write_text(SPENDS)
    done = run("sh", "-c", f"{sys.executable} {program} & {sys.executable} {program}; wait; exit 3")
    assert done.returncode == 3, done.stderr
    took = [float(line) for line in done.stdout.split()]
    assert len(took) == 2
    assert min(took) > 3 * CPU_S
    assert "3 processes" in done.stderr


def test_what_the_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    done = run("sh", "-c", f"setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $! >{file}")
    assert done.returncode == 0, done.stderr
    status = Path(f"/proc/{file.read_text().strip()}/status")
    assert not status.exists() or "(zombie)" in status.read_text()


def test_a_signal_is_passed_on_to_the_command(tmp_path: Path) -> None:
    began = tmp_path / "began"
    child = subprocess.Popen([*SLOW, "sh", "-c", f"trap 'exit 7' TERM; touch {began}; while :; do sleep 0.1; done"])
    wait_for(began.exists, "the command")
    child.send_signal(signal.SIGTERM)
    assert child.wait(PATIENT_S) == 7


@pytest.mark.parametrize("words", [(), ("--share", "0", "true"), ("--share", "2", "true")], ids=str)
def test_words_that_cannot_be_are_refused(words: tuple[str, ...]) -> None:
    assert run(*words).returncode == 2
