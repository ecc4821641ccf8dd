"""A node's connection to an MQTT broker: one file knows the library.

Owns one connection, which the library opens again when it is lost. It must not know what messages mean. MQTT 3.1.1, for
every broker speaks it, and more than 20 messages in flight are an error with the library's version of 5.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

import gmqtt
from gmqtt.mqtt.constants import UNLIMITED_RECONNECTS, MQTTv311
from gmqtt.mqtt.handler import MQTTConnectError

KEEPALIVE_SECONDS: Final = 15
CONNECTS_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 1

Receive = Callable[[str, bytes], None]


class LinkError(Exception):
    """The broker cannot be reached, or refuses the plane. One line."""


class Link:
    """`open` once, `close` once. `receive` is called in the loop, once for each message on one of the `filters`."""

    def __init__(
        self,
        host: str,
        port: int,
        user: str,
        password: str,
        filters: Sequence[str],
        receive: Receive,
        *,
        name: str = "",
        tls: bool = False,
        on_change: Callable[[bool], None] = lambda connected: None,
    ) -> None:
        """`name`: of the connection, unlike all others at the broker; empty: the user's."""
        self._host, self._port, self._tls = host, port, tls
        self._client: Any = gmqtt.Client(name or user, clean_session=True)
        self._client.set_auth_credentials(user, password)
        self._client.set_config({"reconnect_retries": UNLIMITED_RECONNECTS, "reconnect_delay": AGAIN_SECONDS})
        self._filters, self._receive, self._on_change = tuple(filters), receive, on_change
        self._subscribed = asyncio.Event()
        self.connected = False
        self.sent = self.received = 0
        self.lost = 0
        """Messages that were to be sent while there was no connection: the clients of these runs are silent."""
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe

    async def open(self) -> None:
        """Until the broker has taken the subscription. Raises `LinkError`."""
        where = f"{self._host}:{self._port}"
        tls = ssl.create_default_context() if self._tls else False
        try:
            async with asyncio.timeout(CONNECTS_SECONDS):
                await self._client.connect(
                    self._host, self._port, ssl=tls, keepalive=KEEPALIVE_SECONDS, version=MQTTv311
                )
                await self._subscribed.wait()
        except TimeoutError:
            raise LinkError(f"broker {where} did not answer in {CONNECTS_SECONDS:g} s") from None
        except (OSError, MQTTConnectError) as error:
            raise LinkError(f"broker {where}: {error}") from None

    async def close(self) -> None:
        with contextlib.suppress(OSError, ConnectionError):
            await self._client.disconnect()

    def send(self, topic: str, payload: bytes, quality: int) -> None:
        if not self.connected:
            self.lost += 1
            return
        self.sent += 1
        self._client.publish(topic, payload, qos=quality)

    def _on_connect(self, client: Any, _flags: int, _code: int, _properties: Any) -> None:
        """Also after each loss: a clean session knows no subscription."""
        self.connected = True
        for each in self._filters:
            client.subscribe(each, qos=1)
        self._on_change(True)

    def _on_subscribe(self, _client: Any, _number: int, _qualities: Any, _properties: Any) -> None:
        self._subscribed.set()

    def _on_disconnect(self, _client: Any, _packet: Any, _error: Any = None) -> None:
        self.connected = False
        self._subscribed.clear()
        self._on_change(False)

    def _on_message(self, _client: Any, topic: str, payload: bytes, _quality: int, _properties: Any) -> int:
        self.received += 1
        self._receive(topic, bytes(payload))
        return 0
