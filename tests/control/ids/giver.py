"""A process that takes ids while its clock is stepped, for tests that count them.

Run as `python -m tests.control.ids.giver REGISTRY KIND COUNT FILE`: it writes its ids as 8 bytes each.
"""

import random
import sys
from array import array
from pathlib import Path

import uvloop

from muster.clock import now_ms
from muster_server.control.ids import DenseIds, RegistrySegments, Snowflakes
from muster_server.control.registry.embedded import EmbeddedTree
from tests.control.registry.services import connected

TAKEN = 1_000
STEPS_MS = (-3_600_000, -1_000, 0, 1_000, 3_600_000)


class Stepped:
    """The wall clock, set back and ahead now and then."""

    def __init__(self) -> None:
        self._by_ms = 0

    def step(self) -> None:
        self._by_ms = random.choice(STEPS_MS)

    def __call__(self) -> int:
        return now_ms() + self._by_ms


async def _main(registry: Path, kind: str, count: int) -> "array[int]":
    clock = Stepped()
    tree = EmbeddedTree(registry)
    await connected(tree)
    snowflakes, dense = (
        Snowflakes(tree, now_ms=clock, window_ms=200),
        DenseIds(RegistrySegments(tree), "users", segment=3_000),
    )
    ids = array("Q")
    for turn in range(count // TAKEN):
        ids.extend(await (snowflakes if kind == "snowflake" else dense).take(TAKEN))
        if turn % 20 == 0:
            clock.step()
    await tree.close()
    return ids


if __name__ == "__main__":
    given = uvloop.run(_main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
    Path(sys.argv[4]).write_bytes(given.tobytes())
