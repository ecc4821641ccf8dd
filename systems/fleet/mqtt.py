"""A node's connection to the MQTT brokers: only this file knows the library.

Owns one connection at a time. When it is lost, the link opens the next one itself: at the next broker, if there are
several. It must not know the meaning of messages. It uses MQTT 3.1.1, because every broker supports it, and because
with MQTT 5 the library fails with more than 20 messages in flight.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

import gmqtt
from gmqtt.mqtt.constants import MQTTv311
from gmqtt.mqtt.handler import MQTTConnectError

KEEPALIVE_SECONDS: Final = 6
"""A broker that is silent for two keepalives is left, after at most 15 s."""
CONNECTS_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 1.0
CLOSES_SECONDS: Final = 1.0
TELLS_SECONDS: Final = 0.2
"""The reason of a connection's end may still arrive for this many seconds."""

DENIED: Final = 0x80
"""The return code of a subscription that the broker refuses."""

logging.getLogger("gmqtt").setLevel(logging.CRITICAL)  # the link logs what matters

Receive = Callable[[str, bytes], None]
Place = tuple[str, int]


class LinkError(Exception):
    """No broker can be reached, or all refuse the plane. The text is one line."""


class _Client(gmqtt.Client):  # type: ignore[misc]
    """One connection."""

    async def reconnect(self, delay: bool = False) -> None:
        """Does nothing: the link opens the next connection."""


class Link:
    """Call `open` once and `close` once. `receive` is called in the loop, once for each message on one of the
    `filters`."""

    def __init__(
        self,
        brokers: Sequence[Place],
        user: str,
        password: str,
        filters: Sequence[str],
        receive: Receive,
        *,
        name: str = "",
        tls: bool = False,
        first: int = 0,
        on_change: Callable[[bool], None] = lambda connected: None,
        on_retained: Receive | None = None,
    ) -> None:
        """`brokers`: members of one cluster, tried from index `first` on, so that nodes spread over them. `name`:
        client id, unique at the brokers; empty: the user's. `on_retained` is called in place of `receive` with retained
        messages."""
        turn = first % len(brokers)
        self._brokers = [*brokers[turn:], *brokers[:turn]]
        self._user, self._password, self._name = user, password, name or user
        self._tls = ssl.create_default_context() if tls else False
        self._filters, self._receive, self._on_change = tuple(filters), receive, on_change
        self._on_retained = on_retained or receive
        self._client: Any = None
        self._subscribed, self._lost = asyncio.Event(), asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._denied = False
        self.connected = False
        self.sent = self.received = 0
        self.lost = 0
        """Messages that could not be sent without a connection: the clients of these runs count as silent."""

    @property
    def broker(self) -> Place:
        """The broker that is connected, or is tried next."""
        return self._brokers[0]

    async def open(self) -> None:
        """Connect; returns once a broker has accepted the subscriptions. Raises `LinkError` if none did."""
        await self._connect()
        self._keeping = asyncio.create_task(self._keep(), name="keeps the broker's connection")

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._leave()

    def send(self, topic: str, payload: bytes, quality: int) -> None:
        if not self.connected:
            self.lost += 1
            return
        self.sent += 1
        self._client.publish(topic, payload, qos=quality)

    def clear(self, topic: str) -> None:
        """Clear the retained message of this topic at the broker."""
        if self.connected:
            self._client.publish(topic, b"", qos=1, retain=True)

    async def _keep(self) -> None:
        while True:
            await self._lost.wait()
            self._brokers.append(self._brokers.pop(0))
            while not self.connected:
                try:
                    await self._connect()
                except LinkError:
                    await asyncio.sleep(AGAIN_SECONDS)

    async def _connect(self) -> None:
        """Connect to the first broker that accepts. Raises `LinkError`."""
        causes: list[str] = []
        for _ in self._brokers:
            host, port = self._brokers[0]
            try:
                await self._try(host, port)
                return
            except (OSError, MQTTConnectError, LinkError) as error:
                causes.append(f"broker {host}:{port}: {error}")
                await self._leave()
                self._brokers.append(self._brokers.pop(0))
        raise LinkError("; ".join(causes))

    async def _try(self, host: str, port: int) -> None:
        """Connect with a clean session, and subscribe."""
        self._client = client = _Client(self._name, clean_session=True)
        self._subscribed.clear()
        self._lost.clear()
        client.set_auth_credentials(self._user, self._password)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_subscribe = self._on_subscribe
        opening = asyncio.create_task(self._opened(client, host, port))
        lost = asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait((opening, lost), timeout=CONNECTS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                await asyncio.wait((opening,), timeout=TELLS_SECONDS)
            if not opening.done():
                raise LinkError("ended the connection" if lost.done() else f"no answer in {CONNECTS_SECONDS:g} s")
            await opening
        finally:
            for task in (opening, lost):
                task.cancel()
            await asyncio.gather(opening, lost, return_exceptions=True)

    async def _opened(self, client: Any, host: str, port: int) -> None:
        await client.connect(host, port, ssl=self._tls, keepalive=KEEPALIVE_SECONDS, version=MQTTv311)
        await self._subscribed.wait()
        if self._denied:
            raise LinkError("refuses the subscriptions")

    async def _leave(self) -> None:
        """Close the rest of the current connection."""
        client, self._client = self._client, None
        if client is not None:
            self._is_connected(False)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CLOSES_SECONDS):
                    await client.disconnect()

    def _is_connected(self, connected: bool) -> None:
        if connected != self.connected:
            self.connected = connected
            self._on_change(connected)

    def _on_connect(self, client: Any, _flags: int, _code: int, _properties: Any) -> None:
        client.subscribe([gmqtt.Subscription(each, qos=1) for each in self._filters])

    def _on_subscribe(self, client: Any, _number: int, qualities: Any, _properties: Any) -> None:
        if client is self._client:
            self._denied = any(each >= DENIED for each in qualities)
            self._is_connected(not self._denied)
            self._subscribed.set()

    def _on_disconnect(self, client: Any, _packet: Any, _error: Any = None) -> None:
        if client is self._client:
            self._lost.set()
            self._is_connected(False)

    def _on_message(self, _client: Any, topic: str, payload: bytes, _quality: int, properties: Any) -> int:
        if not payload:  # the broker cleared the topic's retained message
            return 0
        self.received += 1
        if properties.get("retain"):
            self._on_retained(topic, bytes(payload))
        else:
            self._receive(topic, bytes(payload))
        return 0
