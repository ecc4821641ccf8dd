"""Four processes read and write the same keys, and are killed: no strict read gets less than what was dropped before it."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests import strikes
from tests.cache.program import PROCESSES, Table
from tests.documents import ROOT
from tests.redis_server import RedisServer
from tests.stepped import SteppedClock

OPERATIONS: Final = 5_000
OPERATIONS_LONG: Final = int(os.environ.get("MUSTERTEST_OPERATIONS", "1000000"))
SEED: Final = int(os.environ.get("MUSTERTEST_SEED", "51"))
KILL_S: Final = 0.5
AHEAD_MS: Final = (3_600_000, -3_600_000, 0)


def test_no_strict_read_is_older_than_a_drop_while_processes_are_killed(tmp_path: Path) -> None:
    play(tmp_path, OPERATIONS)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_strict_read_is_older_than_a_drop_over_a_million(tmp_path: Path) -> None:
    play(tmp_path, OPERATIONS_LONG)


def test_no_strict_read_is_older_than_a_drop_while_the_clock_of_a_process_steps_by_hours(tmp_path: Path) -> None:
    with SteppedClock.made(tmp_path) as clock:
        play(tmp_path, OPERATIONS, clock)


def play(folder: Path, operations: int, clock: SteppedClock | None = None) -> None:
    """Until this number of reads was judged. The clock is that of process 0, and steps whenever a process is killed."""
    dice = random.Random(SEED)
    server = RedisServer(folder / "redis", appendonly=False).start()
    file, said = folder / "table", folder / "said"
    table = Table(file)
    running: list[subprocess.Popen[bytes]] = []
    try:
        with said.open("ab") as log:

            def started(number: int) -> subprocess.Popen[bytes]:
                words = [sys.executable, "-m", "tests.cache.program", str(file), server.url, str(number)]
                own = clock.environment if clock is not None and number == 0 else {}
                return subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log, env=os.environ | own)

            running += [started(number) for number in range(PROCESSES)]
            kills, next_kill = 0, time.monotonic() + 3 * KILL_S
            while table.sum("reads") < operations or kills < 3:
                time.sleep(0.02)
                if time.monotonic() >= next_kill and table.sum("reads") > 0:
                    number = dice.randrange(PROCESSES)
                    assert running[number].poll() is None, said.read_text()[-2_000:]
                    strikes.kill(running[number].pid)
                    running[number].wait()
                    if clock is not None:
                        clock.set(AHEAD_MS[kills % len(AHEAD_MS)])
                    running[number] = started(number)
                    kills, next_kill = kills + 1, time.monotonic() + KILL_S + dice.random() * KILL_S
        assert table.sum("wrong") == 0, said.read_text()[-2_000:]
        assert table.sum("writes") > 0
    finally:
        for each in running:
            each.kill()
            each.wait()
        server.end()
