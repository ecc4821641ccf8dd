"""The slowness of a machine: limits grow with it, and hold as they are on one that is no busier than usual."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slowness import Slowness

SPIN = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count waits")
def test_a_process_that_shares_its_processor_is_slow() -> None:
    (cpu, *_) = os.sched_getaffinity(0)
    words = ["taskset", "-c", str(cpu), sys.executable, "-c", SPIN]
    spinning = [subprocess.Popen(words) for _ in range(6)]
    slow = Slowness(each.pid for each in spinning)
    ratios = []
    while spinning[0].poll() is None:
        ratios.append(slow.ratio())
    for each in spinning:
        each.wait()
    assert max(ratios) > 3.0
    assert slow.limit(1.0) >= 1.0


def test_a_machine_that_is_no_busier_than_usual_changes_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slowness()
    for ratio, limit, least in ((1.0, 3.0, 0.9), (2.0, 3.0, 0.9), (8.0, 12.0, 0.225)):
        monkeypatch.setattr(Slowness, "ratio", lambda _, ratio=ratio: ratio)
        assert slow.limit(3.0) == limit
        assert slow.least(0.9) == pytest.approx(least)
