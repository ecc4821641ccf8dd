"""`scripts/test.sh` with stand-ins for what it runs: a failure of any of them is a failure, and nothing outlives it."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
PATIENT_S: Final = 60.0
AUTOGROUP: Final = "/proc/self/autogroup"
PASSED: Final = "echo PASSED"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree in which every part passes."""
    for part in ("scripts/setup.sh", "scripts/lint.sh", "scripts/rust.sh", ".venv/bin/pytest", "bin/cargo"):
        stands_in(tmp_path / part, PASSED)
    shutil.copy(ROOT / "scripts" / "test.sh", tmp_path / "scripts")
    return tmp_path


def stands_in(file: Path, program: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{program}\n")
    file.chmod(0o755)


def run(tree: Path) -> tuple[int, str]:
    """The exit code, and all that was said. A shell's background jobs have Ctrl-C ignored, and could not trap it."""
    suite = subprocess.run(
        ["env", "--default-signal=INT", tree / "scripts" / "test.sh", "-k", "these"],
        env={**os.environ, "PATH": f"{tree / 'bin'}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )
    return suite.returncode, suite.stdout


def test_where_all_pass_the_suite_does_and_says_what_each_said(tree: Path) -> None:
    stands_in(tree / ".venv/bin/pytest", 'echo "pytest $*"')
    stands_in(tree / "scripts/rust.sh", "sleep 0.2; echo late")
    code, said = run(tree)
    assert (code, said.count("PASSED")) == (0, 3), said
    assert "pytest -m not soak -k these" in said
    assert said.endswith("late\n"), "pytest has not printed it, so the script does"


@pytest.mark.parametrize("part", ["scripts/lint.sh", "bin/cargo", "scripts/rust.sh", ".venv/bin/pytest"])
def test_one_that_fails_fails_the_suite_and_the_others_run_nevertheless(tree: Path, part: str) -> None:
    stands_in(tree / part, "echo FAILED; exit 7")
    code, said = run(tree)
    assert (code, said.count("FAILED"), said.count("PASSED")) == (1, 1, 4), said


def test_without_a_setup_nothing_runs(tree: Path) -> None:
    stands_in(tree / "scripts/setup.sh", "echo no compiler; exit 5")
    assert run(tree) == (5, "no compiler\n")


@pytest.mark.skipif(not os.access(AUTOGROUP, os.W_OK), reason="Linux shares processors without regard to sessions")
def test_what_runs_beside_pytest_is_the_last_of_all_sessions(tree: Path) -> None:
    stands_in(tree / "scripts/rust.sh", f"cat {AUTOGROUP}")
    assert "nice 19" in run(tree)[1]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_beside_pytest_ends_with_the_suite(tree: Path, end: signal.Signals) -> None:
    # A shell that is told to end just before it starts what it waits for would wait for that: it has started it already.
    rust = "trap 'sleep 0.3; exit 1' TERM; sleep 60 & echo $$ > rust.pid; wait; echo never"
    stands_in(tree / "scripts/rust.sh", rust)
    stands_in(tree / ".venv/bin/pytest", f"while ! [ -s rust.pid ]; do sleep 0.01; done; kill -{end:d} $PPID")
    code, said = run(tree)
    assert code == 128 + end
    assert "never" not in said
    pid = int((tree / "rust.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
