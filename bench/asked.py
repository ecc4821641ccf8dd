"""What nodes say of themselves on their admin ports: their metrics, and whether all of an instance have found each other."""

import re
from collections.abc import Iterable
from typing import Final

from control.commands.common import fetch, get
from control.errors import UserError
from control.instance import Process

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
