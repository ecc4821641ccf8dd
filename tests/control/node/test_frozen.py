"""A node that serves has little for its garbage collector to look at."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from muster_server.control.node import process
from muster_server.control.node.live import Live
from muster_server.plane.spec import Spec
from tests.likes.serve import settings, spec


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


class Owner:
    """Ends the node once it is ready."""

    def __init__(self) -> None:
        self.objects: int | None = None
        """Objects that a full collection would look at once the node is ready."""

    def tell(self, state: str, **_: Any) -> None:
        if state == "ready":
            self.objects = len(gc.get_objects())
            self._end.set()

    def watch(self, end: asyncio.Event, stop: asyncio.Event, attach: Callable[[Live], None]) -> None:
        self._end = end

    def current(self, spec: Spec) -> Spec:
        return spec


async def test_a_full_collection_leaves_out_what_the_start_loaded(tmp_path: Path) -> None:
    owner, before = Owner(), len(gc.get_objects())
    await process.serve(spec(settings(tmp_path)), structlog.get_logger(), owner)
    assert owner.objects is not None
    assert owner.objects < before / 10
