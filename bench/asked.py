"""What nodes say of themselves on their admin ports: their metrics, and whether all of an instance have found each other."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from bench.child import ChildFailedError
from control.cluster.instance import Process, Record
from control.console.common import fetch, get
from control.errors import UserError

WHOLE_SECONDS: Final = 60.0


def metrics(process: Process) -> dict[str, float]:
    """By name, summed over labels. Raises `UserError` when it does not answer."""
    figures: dict[str, float] = {}
    for family in text_string_to_metric_families(fetch(process, "/metrics")[1].decode()):
        for sample in family.samples:
            figures[sample.name] = figures.get(sample.name, 0.0) + sample.value
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
