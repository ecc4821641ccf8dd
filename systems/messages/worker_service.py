"""The worker as a process: a stream of fires from the center, callbacks, and results back.

Without a center it finishes its messages, and keeps the results until a center takes them.
"""

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from muster_server import _engines
from muster_server.control.errors import BAD_CONFIG, UserError
from muster_server.plane import ways
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec, SpecError
from muster_server.systems.messages.certificates import CertificateError, certificates
from muster_server.systems.messages.certificates import key as private_key
from muster_server.systems.messages.fan_out import FanOut
from muster_server.systems.messages.firing import RESULTS_MAX, Firing, Publish, PublishError
from muster_server.systems.messages.instance_client import InstanceClient
from muster_server.systems.messages.link import CenterLink, Link
from muster_server.systems.messages.options import WorkerOptions
from muster_server.systems.messages.receiver import Receiver, Unreachable
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.service import MessagesService
from muster_server.systems.messages.shapes import Envelope, HeldTarget, Holds, Join, Results
from muster_server.systems.messages.system import CENTER, MessagesSettings, networks
from muster_server.systems.messages.targets import Kind
from muster_server.systems.messages.topics import Topics

if TYPE_CHECKING:
    from muster_server.systems.messages.kafka import KafkaTargets

AGAIN_S: Final = 0.2
GATHER_S: Final = 0.005
CALLS_MAX: Final = 100_000
WEIGH_S: Final = 1.0
HELD_S: Final = 0.5
HELD_AGAIN_S: Final = 5.0
ACCEPTED: Final = 1 << 32
"""Limit of bytes of a body for subscribers: the schedule has it already, so it is short enough."""


class WorkerService(MessagesService):
    """The `plane.service.Service` of a worker."""

    def __init__(self, spec: Spec, settings: MessagesSettings, context: Context) -> None:
        super().__init__(spec, context, settings.folder, Topics(Path(settings.topics)))
        options = msgspec.convert(settings.options, WorkerOptions)
        self._options = options
        self._incarnation = (spec.node << 32) | spec.epoch
        self._join = Join(self._incarnation, options.held_max, context.name)
        self._link = Link(CENTER, self.places.of(CENTER), self.token)
        self._joined = False
        self._superseded = ""
        self._client = InstanceClient(settings.folder, spec, context, self.places)
        self._fan_out = FanOut(
            Receiver(
                self.topics,
                CenterLink(self._link),
                body_bytes_max=ACCEPTED,
                delay_days_max=1,
                kinds=frozenset(settings.targets),
            )
        )
        self._kafka = _kafka(options.kafka)
        self._ways = {
            each: ways.made(into.way, spec, context, settings.folder)
            for each, into in ways.targets().items()
            if each in settings.targets
        }
        self._load = _Load()
        self._firing = Firing(
            self.topics,
            self._publishers(settings.targets),
            context.log,
            allowed=networks(options.allowed),
            **_certificates(*settings.certificates),
            concurrency=options.concurrency,
            rate=float(options.rate) if options.rate else None,
            in_flight_max=options.in_flight_max,
            calls_max=CALLS_MAX,
            queue_max=options.held_max,
        )

    def _publishers(self, reached: Collection[Kind]) -> dict[Kind, Publish]:
        publishers: dict[Kind, Publish] = {"room": self._client.to_room, "topics": self._fan_out.publish}
        if "user" in reached:
            publishers["user"] = self._client.to_user
        if self._kafka is not None:
            publishers["kafka"] = self._kafka.publish
        return publishers | {each: by_way(way) for each, way in self._ways.items()}

    # --- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the thread of callbacks."""
        try:
            self._firing.open()
        except OSError as error:  # a certificate that does not fit its key
            raise UserError(f"cannot make callbacks: {error}", BAD_CONFIG) from None

    async def work(self) -> None:
        """Take fires and report results, without end."""
        telling = asyncio.gather(self._tell(), self._tell_held())
        try:
            while True:
                try:
                    stream = self._link.stream("fires", self._join, msgspec.Raw)
                    async with contextlib.aclosing(stream) as pieces:
                        async for fires in pieces:
                            if not self._joined:
                                self._joined = True
                                self.log.info("joined the center")
                            self._firing.take(bytes(fires))
                except Unreachable as error:
                    if self._joined:
                        self.log.warning("the center does not answer", why=str(error))
                except Refusal as error:
                    self.log.warning("the center refuses this worker", why=error.detail)
                self._joined = False
                await asyncio.sleep(AGAIN_S)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _tell(self) -> None:
        """Report results to the center, and retry until it has them."""
        while True:
            await self._firing.results.wait()
            if self._firing.waiting < RESULTS_MAX:  # several are sent together: a request costs more than a result
                await asyncio.sleep(GATHER_S)
            piece = msgspec.Raw(self._firing.piece())
            weight = self._load.weight(self._firing.under_way / self._options.in_flight_max)
            try:
                taken = await self._link.ask("results", Results(self._incarnation, weight, piece), bytes)
            except (Unreachable, Refusal):
                await asyncio.sleep(AGAIN_S)
                continue
            self._firing.told(taken)
            if not all(taken):
                await asyncio.sleep(AGAIN_S)

    async def _tell_held(self) -> None:
        """Report the targets that get nothing, when they change, and now and then: the center may be another one."""
        told, told_at = list[HeldTarget](), 0.0
        while True:
            await asyncio.sleep(HELD_S)
            held, now = self._firing.held(), time.monotonic()
            names = [(each.topic, each.url, each.why) for each in held]
            if names == [(each.topic, each.url, each.why) for each in told] and (
                not held or now - told_at < HELD_AGAIN_S
            ):
                continue
            with contextlib.suppress(Unreachable, Refusal):  # a center of a version before 0.3 does not know it
                await self._link.ask("holds", Holds(self._incarnation, held), msgspec.Raw)
                told, told_at = held, now

    def topics_changed(self) -> None:
        """Use the current topics."""
        self._firing.topics_changed()

    async def drain(self) -> None:
        """Finish callbacks, and report their results."""
        telling = asyncio.create_task(self._tell())
        try:
            while self._firing.under_way or self._firing.waiting:  # noqa: ASYNC110 - counts of another thread
                await asyncio.sleep(0.01)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def shut(self) -> None:
        """Close the clients."""
        self._firing.close()
        await self._client.close()
        for way in self._ways.values():
            await way.close()
        if self._kafka is not None:
            await self._kafka.close()
        await self._link.close()

    def is_ready(self) -> bool:
        """Whether it knows the topics, and takes fires."""
        return self.topics.known and self._joined

    # --- status -------------------------------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """The work in progress."""
        return {"under_way": self._firing.under_way, "results_waiting": self._firing.waiting, "joined": self._joined}

    def counters(self) -> list[Figure]:
        """Callbacks by outcome."""
        text = "Callbacks and publications by outcome; not_made and out_of_time are no attempts"
        return [
            (f'messages_calls{{outcome="{outcome}"}}', text, float(count))
            for outcome, count in self._firing.made.items()
        ]

    def gauges(self) -> list[Figure]:
        """The present gauges."""
        return [
            *super().gauges(),
            ("messages_under_way", "Callbacks without an answer", float(self._firing.under_way)),
            ("messages_results_waiting", "Results that the center does not have", float(self._firing.waiting)),
        ]


def _certificates(ca: str, certificate: str, key: str) -> dict[str, Any]:
    """Raises `SpecError`."""
    try:
        return {
            "authorities": certificates(ca) if ca else [],
            "identity": (certificates(certificate), private_key(key)) if certificate and key else None,
        }
    except CertificateError as error:
        raise SpecError(str(error)) from None


def by_way(way: ways.Way) -> Publish:
    """Hands messages over to another system, each with an id that no other topic's message has."""

    async def publish(name: str, envelope: Envelope, topic: str) -> None:
        try:
            await way.put(name, f"{topic}:{envelope.id}", envelope.body, envelope.kind)
        except ways.NotTaken as error:
            raise PublishError(str(error), lasting=error.lasting) from None

    return publish


def _kafka(url: str) -> "KafkaTargets | None":
    if not url:
        return None
    from muster_server.systems.messages.kafka import KafkaTargets  # its library is an optional extra

    return KafkaTargets(url.removeprefix("kafka://"))


class _Load:
    """The share of this machine that is in use, read once a second."""

    def __init__(self) -> None:
        self._looked, self._cpu_s, self._memory, self._cpu = 0.0, 0.0, 0.0, 0.0
        self._pages = os.sysconf("SC_PHYS_PAGES")

    def weight(self, held: float) -> int:
        """As `_engines.worker_weight`."""
        now = time.monotonic()
        if now - self._looked > WEIGH_S:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            used = usage.ru_utime + usage.ru_stime
            if self._looked:
                self._cpu = min(1.0, (used - self._cpu_s) / (now - self._looked))
            self._looked, self._cpu_s = now, used
            self._memory = 1.0 - os.sysconf("SC_AVPHYS_PAGES") / self._pages
        return _engines.worker_weight(min(1.0, held), self._memory, self._cpu)


def build(spec: Spec, settings: MessagesSettings, context: Context) -> WorkerService:
    """Make the worker. Raises `SpecError`."""
    return WorkerService(spec, settings, context)
