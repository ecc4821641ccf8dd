"""Commands that know nothing of each other, run at once: most of a command is its start, on one processor of several."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Said = TypeVar("Said")


def together(
    call: Callable[..., Said], asked: Sequence[tuple[str, ...]], many: int | None = None
) -> dict[tuple[str, ...], Said]:
    """What `call` gives for each of these words: as many at once as there are processors, or so `many`."""
    with ThreadPoolExecutor(many or os.cpu_count()) as threads:
        return dict(zip(asked, threads.map(lambda words: call(*words), asked), strict=True))
