"""Reads nodes' admin ports for a bench: their metrics, and whether all nodes of an instance are linked."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from bench.child import ChildFailedError
from muster_server.control.cluster.instance import Process, Record
from muster_server.control.errors import UserError
from muster_server.control.terminal.common import fetch, get

WHOLE_SECONDS: Final = 60.0


def metrics(process: Process) -> dict[str, float]:
    """Return a node's metrics by name, summed over labels. Raises `UserError` when it does not answer."""
    figures: dict[str, float] = {}
    for family in text_string_to_metric_families(fetch(process, "/metrics")[1].decode()):
        for sample in family.samples:
            figures[sample.name] = figures.get(sample.name, 0.0) + sample.value
    return figures


def whole(processes: Iterable[Process]) -> bool:
    """Whether all nodes serve and no link is missing."""
    try:
        return all(process.ready and not get(process, "/api/v1/status")[1]["links_lost"] for process in processes)
    except UserError:
        return False


def until_whole(look: Callable[[], Record]) -> None:
    """Wait until a killed node is back and all nodes have the links they need. Raises `ChildFailedError`."""
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
