"""Runs independent commands at once: most of a command's time is its start, on one processor of several."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def together(
    call: Callable[..., Result], asked: Sequence[tuple[str, ...]], many: int | None = None
) -> dict[tuple[str, ...], Result]:
    """The results of `call` for each of these words: as many at once as there are processors, or `many`."""
    with ThreadPoolExecutor(many or os.cpu_count()) as threads:
        return dict(zip(asked, threads.map(lambda words: call(*words), asked), strict=True))
