"""The same tasks in streaq: `python -m bench.tasks_streaq REDIS_URL`, a worker until it is ended."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from streaq import Worker

from bench.tasks_jobs import note

AT_ONCE = 8


def queue(url: str) -> tuple[Any, Any]:
    """A queue and its task."""
    worker: Any = Worker(redis_url=url, concurrency=AT_ONCE, idle_timeout=5)

    @worker.task  # type: ignore[untyped-decorator]
    async def noop(sent_ns: int) -> None:
        note(sent_ns)

    return worker, noop


async def send_many(url: str, sent_ns: Sequence[int]) -> None:
    """Tasks at once, in one call."""
    worker, noop = queue(url)
    async with worker:
        await worker.enqueue_many([noop.enqueue(each) for each in sent_ns])


if __name__ == "__main__":
    asyncio.run(queue(sys.argv[1])[0].run_async())
