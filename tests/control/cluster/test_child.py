"""A supervised process restarts with back-off and ends when asked."""

import asyncio
import errno
import random
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import structlog

from muster_server.control.cluster.child import BACKOFF_MAX_S, HEALTHY_S, Backoff, Child
from muster_server.control.errors import UserError
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()
SERVES = """
import sys
print('{"state": "ready"}', flush=True)
sys.stdin.read()
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + SERVES


async def started(code: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=PIPE, stdout=PIPE)


def make(code: str) -> Child:
    return Child("fake", lambda: started(code), lambda: None, LOG, Backoff(random.Random(1)))


async def until_ready(child: Child, besides: int = -1) -> int:
    await until(lambda: child.state == "ready" and child.pid not in (0, besides))
    return child.pid


def test_the_first_restart_is_at_once_then_delays_double_to_the_cap() -> None:
    backoff = Backoff(random.Random(1))
    delays = [backoff.delay(0.0) for _ in range(12)]
    assert delays[0] == 0.0
    for exponent, delay in enumerate(delays[1:]):
        longest = min(BACKOFF_MAX_S, 0.05 * 2**exponent)
        assert longest / 2 <= delay <= longest
    assert delays[-1] > 2.0


def test_a_long_healthy_life_forgives_what_was_before() -> None:
    backoff = Backoff(random.Random(1))
    for _ in range(5):
        backoff.delay(HEALTHY_S / 2)
    assert backoff.delay(HEALTHY_S) == 0.0


async def test_a_killed_process_is_started_again() -> None:
    child = make(SERVES)
    task = asyncio.create_task(child.run())
    first = await until_ready(child)
    assert child._process is not None
    child._process.kill()
    assert await until_ready(child, besides=first) != first
    assert child.restarts == 1
    await child.stop(5)
    await task
    assert child.state == "ended"
    assert child.pid == 0


async def test_a_process_that_another_one_took_the_place_of_is_not_started_again() -> None:
    child = make("""print('{"state": "failed", "error": "another one"}', flush=True); raise SystemExit(78)""")
    task = asyncio.create_task(child.run())
    await child.begun.wait()
    await until(lambda: child.pid == 0)
    assert (child.state, child.error) == ("failed", "another one")
    await child.stop(5)
    await task
    assert (child.state, child.restarts) == ("ended", 0)


async def test_a_start_that_fails_for_now_is_tried_again() -> None:
    failures: list[Exception] = [OSError(errno.ENOSPC, "no space"), UserError("the last epoch cannot be read")]

    async def start() -> asyncio.subprocess.Process:
        if failures:
            raise failures.pop()
        return await started(SERVES)

    said: list[tuple[str, str | None]] = []
    child = Child("fake", start, lambda: said.append((child.state, child.error)), LOG, Backoff(random.Random(1)))
    task = asyncio.create_task(child.run())
    await until_ready(child)
    assert ("failed", "the last epoch cannot be read") in said
    assert child.error is None
    await child.stop(5)
    await task


async def test_a_process_that_does_not_listen_is_killed_at_the_deadline() -> None:
    child = make(DEAF)
    task = asyncio.create_task(child.run())
    await until_ready(child)
    await asyncio.wait_for(child.stop(0.1), PATIENT_S)
    await asyncio.wait_for(task, PATIENT_S)


async def test_what_is_no_state_is_passed_over() -> None:
    child = make("print('hello'); print('{}')" + SERVES)
    task = asyncio.create_task(child.run())
    await until_ready(child)
    await child.stop(5)
    await task


REFUSES = """
import os, sys
if os.path.exists(sys.argv[1]):
    print('{"state": "ready"}', flush=True)
    sys.stdin.read()
print('{"state": "failed", "error": "the store is damaged"}', flush=True)
raise SystemExit(78)
"""


async def test_a_process_that_refuses_to_start_is_tried_again_and_keeps_its_reason(tmp_path: Path) -> None:
    mended, starts = tmp_path / "mended", 0

    async def start() -> asyncio.subprocess.Process:
        nonlocal starts
        starts += 1
        return await asyncio.create_subprocess_exec(sys.executable, "-c", REFUSES, str(mended), stdin=PIPE, stdout=PIPE)

    child = Child("fake", start, lambda: None, LOG, Backoff(random.Random(1)), again_s=0.01)
    task = asyncio.create_task(child.run())
    await until(lambda: starts > 2)
    assert child.why == "the store is damaged"
    mended.touch()
    await until_ready(child)
    assert child.why == ""
    await child.stop(10)
    await task


async def test_a_process_that_refuses_to_start_and_is_not_tried_again_stays_failed(tmp_path: Path) -> None:
    starts = 0

    async def start() -> asyncio.subprocess.Process:
        nonlocal starts
        starts += 1
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", REFUSES, str(tmp_path / "mended"), stdin=PIPE, stdout=PIPE
        )

    child = Child("fake", start, lambda: None, LOG, Backoff(random.Random(1)))
    task = asyncio.create_task(child.run())
    await until(lambda: child.state == "failed")
    await asyncio.sleep(0)
    assert (starts, child.why) == (1, "the store is damaged")
    await child.stop(10)
    await task
