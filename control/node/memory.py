"""The loop of a node's process, which returns freed memory to the kernel, and what its garbage collector looks at.

Owns the settings of the C library's allocator. Only glibc has them; with another one nothing changes.
"""

import asyncio
import contextlib
import ctypes
import gc
import time
from collections.abc import Coroutine
from typing import Any, Final

import uvloop

M_MXFAST: Final = 1
M_MMAP_THRESHOLD: Final = -3
MMAP_THRESHOLD: Final = 128 << 10
TRIM_S: Final = 5.0
TRIM_MAX_S: Final = 0.005
"""A trim that takes longer is the last one, because it would block the loop. 10,000 sessions take 0.2 to 0.5 ms."""


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run this in the process's loop, to its end. Raises what it raises."""
    _tell()
    uvloop.run(_beside(work))


def freeze() -> None:
    """Leave what the start has loaded out of later garbage collections.

    A full collection blocks the loop for 30 to 50 ms with the 95,000 objects of a node of likes, and one that writes to
    its database had one a second.
    """
    gc.collect()
    gc.freeze()


def _tell() -> None:
    """Set glibc's allocator.

    It returns freed blocks from 128 KiB on to the kernel; by default it stops doing so after the first large one. It
    merges freed blocks up to 128 bytes with their neighbours; by default it keeps each for the next block of its size.
    A role frees large blocks: rings, and groups of 256 keys of idle sessions. Each session frees small ones after a
    burst: 80 bytes per session, measured with 10,000.
    """
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        libc.mallopt(M_MXFAST, 0)


async def _beside(work: Coroutine[Any, Any, None]) -> None:
    trimming = asyncio.create_task(_trim())
    try:
        await work
    finally:
        trimming.cancel()


async def _trim() -> None:
    """Return whole free pages between blocks in use, now and then.

    By default glibc does so only at the end of its heap: 130 bytes per session stayed resident, measured with 10,000
    sessions that had traffic."""
    with contextlib.suppress(AttributeError, OSError):
        malloc_trim = ctypes.CDLL(None).malloc_trim
        took = 0.0
        while took <= TRIM_MAX_S:
            await asyncio.sleep(TRIM_S)
            before = time.thread_time()
            malloc_trim(0)
            took = time.thread_time() - before
