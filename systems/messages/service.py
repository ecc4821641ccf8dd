"""The common part of the four roles: their life in a process, their topics, their readiness."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from muster_server.control.cluster.places import Places, token
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec
from muster_server.systems.messages.link import Link
from muster_server.systems.messages.listener import Listener, Question
from muster_server.systems.messages.receiving import Following, newer
from muster_server.systems.messages.system import ADMIN
from muster_server.systems.messages.topics import Topics

LOOK_S: Final = 0.25
"""Seconds between checks of the file of topics."""


class MessagesService:
    """The `plane.service.Service` of all four. A role defines what it opens, its questions, and when it is ready."""

    take_trust: Final = None
    """It checks nobody's token."""
    malformed: tuple[type[Exception], ...] = ()
    """As for `Listener`."""

    def __init__(self, spec: Spec, context: Context, folder: str, topics: Topics) -> None:
        """`folder`: of the instance or node. Raises `SpecError`."""
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self.spec, self.log, self.topics = spec, context.log, topics
        self.token = token(spec)
        self.places = Places(spec, context, folder)
        self._admin = None if spec.role == ADMIN else Link(ADMIN, self.places.of(ADMIN), self.token)
        self._listener: Listener | None = None

    # --- for roles ----------------------------------------------------------------------------------------------

    def questions(self) -> Mapping[str, Question]:
        """The questions that it answers."""
        return {}

    async def open(self) -> None:
        """Prepare for questions."""

    async def work(self) -> None:
        """Run until cancelled; an error ends the process."""
        await asyncio.Event().wait()

    async def shut(self) -> None:
        """Close what `open` opened."""

    def is_ready(self) -> bool:
        """Whether it serves."""
        return self.topics.known

    def topics_changed(self) -> None:
        """Called when the topics changed."""

    # --- life -----------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Serve until `stop` is set or the work fails."""
        following = Following(self.topics, partial(newer, self._admin) if self._admin else None)
        if not await self._opened(stop):
            await self.shut()
            self.closed = True
            return
        tasks: list[asyncio.Task[Any]] = []
        try:
            if self.spec.bind is not None:
                self._listener = Listener(self.spec.bind, self.token, self.questions(), self.malformed)
                await self._listener.start()
            tasks = [asyncio.create_task(each) for each in (stop.wait(), self.work(), self._follow(following))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.draining = True
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(drain_s, 1.0)):
                    await self.drain()
            if self._listener is not None:
                await self._listener.end()
            await self.shut()
            if self._admin is not None:
                await self._admin.close()
            self.closed = True
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _opened(self, stop: asyncio.Event) -> bool:
        """Open; returns False if it must end before it has opened, for example while another node has its store."""
        opening, ending = asyncio.create_task(self.open()), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([opening, ending], return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
                return False
            await opening
            return True
        finally:
            ending.cancel()

    async def drain(self) -> None:
        """Finish accepted work, for a short time."""

    async def _follow(self, following: Following) -> None:
        self.topics_changed()
        while True:
            if await following.changed():
                self.topics_changed()
            ready = self.is_ready()
            if ready != self.ready:
                self.ready = ready
                self.on_ready(ready)
            await asyncio.sleep(LOOK_S if ready else 0.02)

    # --- status -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The common part of the status; a role adds its own."""
        state = "draining" if self.draining else "ready" if self.ready else "not ready"
        return {"state": state, "topics": len(self.topics.all()), **self.told()}

    def told(self) -> dict[str, Any]:
        """A role's own part of the status."""
        return {}

    def counters(self) -> list[Figure]:
        """Questions of other nodes."""
        if self._listener is None:
            return []
        return [
            ("messages_asked", "Questions of nodes and programs", float(self._listener.asked)),
            ("messages_asked_refused", "Questions of strangers, and malformed ones", float(self._listener.refused)),
        ]

    def gauges(self) -> list[Figure]:
        """Topics."""
        return [("messages_topics", "Topics known here", float(len(self.topics.all())))]

    def addresses(self) -> list[tuple[str, int]]:
        """The address that it listens on."""
        if self._listener is not None:
            return [self._listener.address]
        return [] if self.spec.bind is None else [self.spec.bind]

    def take(self, settings: Any) -> None:
        """Does nothing: no setting can change while it runs."""


def answering(answer: Callable[[Any], Awaitable[Any]], kind: Any) -> Question:
    """A question with one answer."""
    return Question(kind, answer=answer)
