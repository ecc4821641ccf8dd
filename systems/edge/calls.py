"""Calls of clients (`client.rpc`) that other systems answer. Knows no system: their descriptors name the methods."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final

import structlog

from muster_server._engines import Grant
from muster_server.plane import ways
from muster_server.plane.kind import named
from muster_server.plane.service import Context
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
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    @contextlib.asynccontextmanager
    async def opened(self, context: Context) -> AsyncIterator[None]:
        """While it is open, calls are answered."""
        self._log = context.log
        self._answers = {method: named(path)(self._spec, context) for method, path in self._methods.items()}
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
            self._engine.answer_call(question, None, "internal" if answers is None else "too_many_requests")
            return
        task = asyncio.create_task(self._answer(answers, question, user, grant, data), name=method)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _answer(self, answers: ways.Calls, question: int, user: int, grant: Grant, data: bytes) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                said = await answers.answer(user, grant, data)
        except ways.CallRefused as refused:
            self._engine.answer_call(question, None, refused.failure)
        except TimeoutError:
            self._engine.answer_call(question, None, "internal")
        else:
            self._engine.answer_call(question, said)
