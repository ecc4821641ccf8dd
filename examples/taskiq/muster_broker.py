"""A broker of taskiq over topics of Muster: programs with tasks of taskiq keep them, and no task is lost with its worker.

A task is a message of a topic with the target `pull:`. A worker leases it, extends the lease while the task runs, and says
`done` when taskiq acknowledges it. Owns these leases. It must not know what tasks do.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from muster.errors import MusterError, Refused
from muster.face import Face
from muster.messages import AsyncMessages, body_of

LEASE_S = 30.0
RUN_S_MAX = 3_600.0
WAIT_S = 20.0
AGAIN_S = 1.0
log = logging.getLogger("muster_broker")


@dataclass
class _Held:
    lease: str
    until: float


class MusterBroker(AsyncBroker):
    """`broker = MusterBroker(URL, key=KEY, topic="jobs")`; the topic exists: `muster topic create jobs --callback pull:`.

    The key has the scopes `send:jobs` and `work:jobs`. The label `delay` of a task is its delay in seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str,
        topic: str = "taskiq",
        lease_s: float = LEASE_S,
        run_s_max: float = RUN_S_MAX,
        ahead: int = 8,
        **more: Any,
    ) -> None:
        """`lease_s`: a worker that dies gives its tasks back after this time. `run_s_max`: so long a lease is extended.
        `ahead`: tasks that a worker leases at once."""
        super().__init__(**more)
        self._opening = {"url": url, "key": key}
        self._topic, self._lease_s, self._run_s_max, self._ahead = topic, lease_s, run_s_max, ahead
        self._held: dict[str, _Held] = {}

    async def startup(self) -> None:
        """Open connections."""
        self._messages, self._face = AsyncMessages(**self._opening), Face(**self._opening)
        await super().startup()

    async def shutdown(self) -> None:
        """Close them. Tasks that were leased and not begun are due again when their leases run out."""
        await super().shutdown()
        await self._messages.close()
        await self._face.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; it is durable when this returns. The same task id is the same task."""
        delay = message.labels.get("delay")
        in_s = None if delay is None else float(delay)
        await self._messages.send(self._topic, message.message, id=message.task_id, in_s=in_s)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Lease tasks as taskiq takes them."""
        extending = asyncio.create_task(self._extend())
        try:
            while True:
                for document in await self._lease():
                    id: str = document["id"]
                    self._held[id] = _Held(document["lease"], time.monotonic() + self._run_s_max)
                    yield AckableMessage(data=body_of(document), ack=lambda id=id: self._done(id))
        finally:
            extending.cancel()

    async def _lease(self) -> list[dict[str, Any]]:
        asked = {"most": self._ahead, "wait_s": WAIT_S, "lease_s": self._lease_s}
        while True:
            try:
                said = await self._face.wait("POST", self._path("lease"), asked, WAIT_S)
            except MusterError as error:
                if isinstance(error, Refused) and not error.retry:
                    raise
                log.warning("topic %s: no tasks can be leased now: %s", self._topic, error)
                await asyncio.sleep(AGAIN_S)
            else:
                found: list[dict[str, Any]] = said["messages"]
                return found

    async def _done(self, id: str) -> None:
        """Say that a task is done, for as long as its lease may last."""
        held = self._held.pop(id, None)
        if held is None:
            return
        until = time.monotonic() + self._lease_s
        while True:
            try:
                (said,) = (await self._face.ask("POST", self._path("leases"), {"done": [held.lease]}))["done"]
                if said["outcome"] == "done":
                    return
                if said["outcome"] == "lost":
                    log.warning("task %s was leased by another worker meanwhile", id)
                    return
            except MusterError as error:
                log.warning("task %s is done, and that cannot be said now: %s", id, error)
            if time.monotonic() > until:
                return
            await asyncio.sleep(AGAIN_S)

    async def _extend(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            now = time.monotonic()
            some = [(id, held) for id, held in self._held.items() if now < held.until]
            if not some:
                continue
            asked = {"extend": [{"lease": held.lease, "by_s": self._lease_s} for _, held in some]}
            with contextlib.suppress(MusterError):  # the next time; leases last three of these
                said = await self._face.ask("POST", self._path("leases"), asked)
                for (_, held), answer in zip(some, said["extend"], strict=True):
                    if answer["outcome"] == "done":
                        held.lease = answer["lease"]

    def _path(self, rest: str) -> str:
        return f"/api/v1/topics/{quote(self._topic, safe='')}/{rest}"
