"""What nodes say of themselves on their admin ports: their metrics, and whether all of an instance have found each other."""

import re
import time
from collections.abc import Callable, Iterable
from typing import Final

from bench.child import ChildFailedError
from control.commands.common import fetch, get
from control.errors import UserError
from control.instance import Process, Record

WHOLE_SECONDS: Final = 60.0

SAMPLE: Final = re.compile(r"([a-z_]+)(?:\{[^}]*\})? ([0-9.e+]+)")


def metrics(process: Process) -> dict[str, float]:
    """By name, summed over labels. Raises `UserError` when it does not answer."""
    figures: dict[str, float] = {}
    for line in fetch(process, "/metrics")[1].decode().splitlines():
        if found := SAMPLE.fullmatch(line):
            figures[found[1]] = figures.get(found[1], 0.0) + float(found[2])
    return figures


def whole(processes: Iterable[Process]) -> bool:
    """Whether all serve and none misses a link."""
    try:
        return all(process.ready and not get(process, "/api/v1/status")[1]["links_lost"] for process in processes)
    except UserError:
        return False


def until_whole(look: Callable[[], Record]) -> None:
    """Until who was killed is back, and all have links to all that they need. Raises `ChildFailedError`."""
    until = time.monotonic() + WHOLE_SECONDS
    while True:
        try:
            if whole(look().processes):
                return
        except UserError as error:
            raise ChildFailedError(f"muster: {error}") from None
        if time.monotonic() > until:
            raise ChildFailedError(f"muster: not all nodes were there again after {WHOLE_SECONDS:g} s")
        time.sleep(0.05)
