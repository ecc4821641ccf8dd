"""A role's process for a bench: `control.node` with options that only a bench has.

Owns the lateness of a 10 ms timer in the role's own loop, and the gateway without bundles or super-packets. Started by
`bench.up`; everything else is the real program.
"""

import argparse
import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from bench import pin
from control.node import entry
from control.node import process as node
from control.node.template import started
from muster import _core
from plane.rooms import build
from plane.spec import Spec, read

Serve = Callable[..., Coroutine[Any, Any, None]]

TICK_S: Final = 0.01
TICK_BUCKET_US: Final = 100
TICK_BUCKETS: Final = 100_000


def ticks_file(folder: Path, role: str) -> Path:
    """Where the role counts its timer's lateness: u64 per 100 us."""
    return folder / f"{role}.ticks"


async def tick(file: Path) -> None:
    """Sleeps 10 ms for ever and counts the lateness."""
    counts = np.memmap(file, dtype=np.uint64, mode="w+", shape=(TICK_BUCKETS,))
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + TICK_S
        await asyncio.sleep(TICK_S)
        late_us = max(0.0, loop.time() - due) * 1e6
        counts[min(int(late_us / TICK_BUCKET_US), TICK_BUCKETS - 1)] += 1


def _ticking(serve: Serve, file: Path) -> Serve:
    async def serve_and_tick(spec: Spec, *given: Any, **more: Any) -> None:
        ticking = asyncio.create_task(tick(file))
        try:
            await serve(spec, *given, **more)
        finally:
            ticking.cancel()

    return serve_and_tick


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.node")
    parser.add_argument("--gateway-alone", nargs=2, type=int, metavar="CORE", help="the gateway's, and all others'")
    parser.add_argument("--unbundled", action="store_true")
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--ticks", action="store_true")
    own, template = parser.parse_known_args()
    rest = started(template, entry.load)
    spec_file = Path(rest[rest.index("--spec") + 1])
    spec = read(spec_file)
    if own.gateway_alone:
        pin.pin(own.gateway_alone[spec.role != "gateway"])
    options: dict[str, Any] = {"bundle": not own.unbundled, "coalesce": not (own.unbundled or own.single)}
    gateway = functools.partial(_core.GatewayEngine, **options)
    vars(build)["_core"] = SimpleNamespace(**(vars(_core) | {"GatewayEngine": gateway}))
    if own.ticks:
        vars(node)["serve"] = _ticking(node.serve, ticks_file(spec_file.parent, spec.role))
    return entry.main(rest)


if __name__ == "__main__":
    sys.exit(main())
