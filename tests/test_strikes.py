"""A fault that a test injects takes place, or the test fails there."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests import strikes
from tests.waiting import PATIENT_S


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its end."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made
        made.kill()


def test_who_is_stopped_stands_still_when_the_call_returns_and_goes_on_after(child: subprocess.Popen[bytes]) -> None:
    with strikes.standing_still(child.pid):
        assert strikes.state(child.pid) in strikes.STANDS_STILL
    child.communicate(b"\n", timeout=PATIENT_S)
    assert child.returncode == 0


def test_who_is_killed_runs_no_more_when_the_call_returns(child: subprocess.Popen[bytes]) -> None:
    assert strikes.runs(child.pid)
    strikes.kill(child.pid)
    assert not strikes.runs(child.pid)


@pytest.mark.parametrize("strike", [strikes.kill, strikes.stop])
def test_a_process_that_has_ended_cannot_be_struck(
    child: subprocess.Popen[bytes], strike: Callable[[int], None]
) -> None:
    strikes.kill(child.pid)
    with pytest.raises(AssertionError, match="has ended already"):
        strike(child.pid)
    child.wait()
    with pytest.raises(AssertionError, match="has ended already"):
        strike(child.pid)
    with pytest.raises(AssertionError, match="is no process"):
        strike(0)
