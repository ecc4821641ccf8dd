"""Freed memory goes back to the kernel, as long as that is quick."""

import asyncio
import ctypes
import subprocess
import sys
import time

import pytest

from muster_server.control.node import memory

BLOCK, BLOCKS, EACH_KEPT = 2_000, 10_000, 50
PROGRAM = f"""
import asyncio, ctypes, sys
from muster_server.control.node import memory

memory.TRIM_S = float(sys.argv[1])
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

async def work():
    blocks = [libc.malloc({BLOCK}) for _ in range({BLOCKS})]
    for block in blocks:
        ctypes.memset(ctypes.c_void_p(block), 1, {BLOCK})
    most = resident()
    for block in (each for at, each in enumerate(blocks) if at % {EACH_KEPT}):
        libc.free(block)
    await asyncio.sleep(0.5)
    print(most - resident())

memory.run(work())
"""


def given_back(trim_s: float) -> int:
    """Bytes, of 20 MB that were freed between blocks in use."""
    command = [sys.executable, "-c", PROGRAM, str(trim_s)]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library")
def test_free_pages_between_blocks_in_use_are_given_back() -> None:
    assert given_back(60.0) < BLOCK * BLOCKS // 4
    assert given_back(0.05) > BLOCK * BLOCKS * 3 // 4


def test_a_trim_that_took_too_long_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    trims, times = list[int](), iter([0.0, 0.001, 1.0, 1.006, 2.0, 2.001])

    class Library:
        def malloc_trim(self, pad: int) -> int:
            trims.append(pad)
            return 1

        def mallopt(self, which: int, value: int) -> int:
            return 1

    monkeypatch.setattr(memory, "TRIM_S", 0.001)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(time, "thread_time", lambda: next(times))
    memory.run(asyncio.sleep(0.2))
    assert trims == [0, 0]


def test_what_the_work_raises_is_raised() -> None:
    async def fails() -> None:
        raise OSError("taken")

    with pytest.raises(OSError, match="taken"):
        memory.run(fails())
