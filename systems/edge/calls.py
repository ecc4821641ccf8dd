"""Calls of clients (`client.rpc`) that other systems answer. Knows no system: their descriptors name the methods."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Final

import structlog

from muster_server._engines import Grant
from muster_server.plane import ways
from muster_server.plane.kind import named
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec
from muster_server.systems.edge.engine import EdgeEngine

CALLS_MAX: Final = 256
"""Limit of calls of one method that are being answered for all clients; further ones fail, and clients try again."""
ANSWER_S: Final = 10.0


class Calls:
    """Answers calls while the context of `opened` is open."""

    def __init__(self, engine: EdgeEngine, methods: Mapping[str, str], spec: Spec) -> None:
        """`methods`: each with the function that makes its answers."""
        self._engine, self._methods, self._spec = engine, methods, spec
        self._answers: dict[str, ways.Calls] = {}
        self._tasks: dict[str, set[asyncio.Task[None]]] = {method: set() for method in methods}
        self._counts: Counter[tuple[str, str]] = Counter(
            {(method, each): 0 for method in methods for each in ways.FAILURES}
        )
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    @contextlib.asynccontextmanager
    async def opened(self, context: Context) -> AsyncIterator[None]:
        """While it is open, calls are answered."""
        self._log = context.log
        self._answers = {method: named(path)(self._spec, context) for method, path in self._methods.items()}
        for method, each in self._answers.items():
            self._counts.update({(method, outcome): 0 for outcome in each.outcomes})
        try:
            yield
        finally:
            answers, self._answers = self._answers, {}
            tasks = [task for each in self._tasks.values() for task in each]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(each.close() for each in answers.values()))

    def call(self, question: int, user: int, grant: Grant, method: str, data: bytes) -> None:
        """The handler of an engine's `call` events."""
        answers = self._answers.get(method)
        tasks = self._tasks.get(method, set())
        if answers is None or len(tasks) >= CALLS_MAX:
            self._refuse(question, method, "internal" if answers is None else "too_many_requests")
            return
        task = asyncio.create_task(self._answer(answers, question, user, grant, method, data), name=method)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def counters(self) -> list[Figure]:
        """As `Service.counters`."""
        text = "Calls of clients that systems answer, by method and outcome"
        return [
            (f'calls{{method="{method}",outcome="{outcome}"}}', text, float(count))
            for (method, outcome), count in sorted(self._counts.items())
        ]

    async def _answer(
        self, answers: ways.Calls, question: int, user: int, grant: Grant, method: str, data: bytes
    ) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                outcome, said = await answers.answer(user, grant, data)
        except ways.CallRefused as refused:
            self._refuse(question, method, refused.failure)
        except TimeoutError:
            self._refuse(question, method, "internal")
        else:
            self._counts[method, outcome] += 1
            self._engine.answer_call(question, said)

    def _refuse(self, question: int, method: str, failure: ways.Failure) -> None:
        if method in self._methods:
            self._counts[method, failure] += 1
        self._engine.answer_call(question, None, failure)
