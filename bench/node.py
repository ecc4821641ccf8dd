"""A role's process for a bench: `control.node` with options that only a bench has.

Owns the lateness of a 10 ms timer in the role's own loop, what the process has allocated, and the gateway without bundles
or super-packets. Started by `bench.up`; everything else is the real program, and loads no more than that.
"""

import argparse
import asyncio
import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from bench import pin
from muster_server import _engines
from muster_server.control.node import entry
from muster_server.control.node import process as node
from muster_server.control.node.template import started
from muster_server.plane.spec import Spec, read
from muster_server.systems.rooms import build

Serve = Callable[..., Coroutine[Any, Any, None]]

TICK_S: Final = 0.01
TICK_BUCKET_US: Final = 100
TICK_BUCKETS: Final = 100_000
HEAP_S: Final = 0.25
HEAP_FIGURES: Final = 2
WORD_BYTES: Final = 8
MALLINFO2: Final = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


def ticks_file(folder: Path, role: str) -> Path:
    """Where the role counts its timer's lateness: u64 per 100 us."""
    return folder / f"{role}.ticks"


def heap_file(folder: Path, role: str) -> Path:
    """Where the role writes what the C library has given out, and what it keeps of what came back: u64 bytes each."""
    return folder / f"{role}.heap"


def _words(file: Path, count: int) -> memoryview:
    """A new file of `count` u64, in memory."""
    with file.open("w+b") as opened:
        opened.truncate(count * WORD_BYTES)
        return memoryview(mmap.mmap(opened.fileno(), 0)).cast("Q")


async def tick(file: Path) -> None:
    """Sleeps 10 ms for ever and counts the lateness."""
    counts = _words(file, TICK_BUCKETS)
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + TICK_S
        await asyncio.sleep(TICK_S)
        late_us = max(0.0, loop.time() - due) * 1e6
        counts[min(int(late_us / TICK_BUCKET_US), TICK_BUCKETS - 1)] += 1


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later: all arenas, and blocks that are mapped alone."""

    _fields_ = [(name, ctypes.c_size_t) for name in MALLINFO2.split()]


async def weigh(file: Path) -> None:
    """Writes the sums of the heap for ever. They stay 0 where the C library has none."""
    sums = _words(file, HEAP_FIGURES)
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return
    mallinfo2.restype = _Mallinfo2
    while True:
        info = mallinfo2()
        sums[0], sums[1] = info.uordblks + info.hblkhd, info.fordblks
        await asyncio.sleep(HEAP_S)


def _beside(serve: Serve, work: Callable[[Path], Coroutine[Any, Any, None]], file: Callable[[str], Path]) -> Serve:
    """Each role, and this work in its loop, with the role's file."""

    async def serve_and_work(spec: Spec, *given: Any, **more: Any) -> None:
        working = asyncio.create_task(work(file(spec.role)))
        try:
            await serve(spec, *given, **more)
        finally:
            working.cancel()

    return serve_and_work


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.node")
    parser.add_argument("--gateway-alone", nargs=2, type=int, metavar="CORE", help="the gateway's, and all others'")
    parser.add_argument("--unbundled", action="store_true")
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--ticks", action="store_true")
    parser.add_argument("--heap", action="store_true")
    own, template = parser.parse_known_args()
    rest = started(template, entry.load)
    spec_file = Path(rest[rest.index("--spec") + 1])
    spec = read(spec_file)
    if own.gateway_alone:
        pin.pin(own.gateway_alone[spec.role != "gateway"])

    def gateway(links: Any, door: Any, settings: bytes, **more: Any) -> Any:
        bundle = not own.unbundled
        settings = msgspec.json.encode({**msgspec.json.decode(settings), "bundle": bundle})
        return _engines.GatewayEngine(links, door, settings, coalesce=bundle and not own.single, **more)

    vars(build)["_engines"] = SimpleNamespace(**(vars(_engines) | {"GatewayEngine": gateway}))
    if own.ticks:
        vars(node)["serve"] = _beside(node.serve, tick, functools.partial(ticks_file, spec_file.parent))
    if own.heap:
        vars(node)["serve"] = _beside(node.serve, weigh, functools.partial(heap_file, spec_file.parent))
    return entry.main(rest)


if __name__ == "__main__":
    sys.exit(main())
