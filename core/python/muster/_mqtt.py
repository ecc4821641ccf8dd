"""One connection to an MQTT 3.1.1 broker: the few packets that a client of a fleet needs.

Owns the bytes and the packets that the broker has not acknowledged yet. It must not know topics, and it never
reconnects.
Written here, since this library depends on nothing, and thousands of these live in one test process: about 1.5 kB each.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, cast

from muster.errors import MusterError

PACKET_MAX: Final = 1 << 20
UNACKED_MAX: Final = 1_000
"""Limit of unacknowledged messages with QoS 1; a further publish is refused."""
UNAVAILABLE: Final = 3
CODES: Final = {
    1: "protocol version",
    2: "client id",
    UNAVAILABLE: "unavailable",
    4: "bad user or password",
    5: "not authorised",
}

OnMessage = Callable[[str, bytes], None]


class MqttError(MusterError):
    """The broker refused the connection, or the peer does not speak MQTT 3.1.1."""


class BrokerRefused(MqttError):
    """The broker refused the connection. `lasting`: another try with the same name and password, or certificate, fails
    too."""

    def __init__(self, code: int | str) -> None:
        """`code`: that of the broker, or the reason."""
        reason = code if isinstance(code, str) else CODES.get(code, code)
        super().__init__(f"the broker refused the connection: {reason}")
        self.lasting = code != UNAVAILABLE


class Connection(asyncio.Protocol):
    """Lives from `connection_made` to `lost`. The future `opened` gets True, or the error that ended the handshake."""

    __slots__ = ("_buffer", "_handshake", "_heard", "_last", "_lost", "_pinged", "_transport", "opened", "unacked")

    def __init__(self, handshake: bytes, heard: OnMessage, lost: Callable[[], None]) -> None:
        """`handshake`: see `connect_packet`."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.unacked: dict[int, bytes] = {}
        """Packets that the broker has not acknowledged, by number."""
        self._handshake, self._heard, self._lost = handshake, heard, lost
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._last = 0
        self._pinged = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the CONNECT packet."""
        # uvloop's transport class does not inherit from `asyncio.Transport`
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._handshake)

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the stream: whole packets or parts of them."""
        self._buffer = self._buffer + data if self._buffer else data
        while (taken := _packet(self._buffer)) is not None:
            kind, body, length = taken
            if length > PACKET_MAX:
                self.abort()
                return
            if len(self._buffer) < length:
                return
            self._buffer = self._buffer[length:]
            self._take(kind, body)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection ended: this side, the broker or the network closed it."""
        self._transport = None
        if not self.opened.done():
            reason = _refused_certificate(error)
            self.opened.set_exception(BrokerRefused(reason) if reason else MqttError("the broker ended the connection"))
        self._lost()

    def subscribe(self, topic: str) -> None:
        """Subscribe to a topic filter with QoS 1."""
        self._write(0x82, struct.pack("!H", self._number()) + _text(topic) + b"\x01")

    def publish(self, topic: str, payload: bytes, quality: int) -> int:
        """Return the packet's number, 0 for QoS 0. A packet with QoS 1 stays in `unacked` until the broker acknowledges
        it."""
        if not quality:
            self._write(0x30, _text(topic) + payload)
            return 0
        if len(self.unacked) >= UNACKED_MAX:
            raise MqttError(f"too many messages wait for the broker's acknowledgement (limit {UNACKED_MAX})")
        number = self._number()
        packet = _framed(0x32, _text(topic) + struct.pack("!H", number) + payload)
        self.unacked[number] = packet
        if self._transport is not None:
            self._transport.write(packet)
        return number

    def ping(self) -> None:
        """Send PINGREQ. The connection ends if the previous one was not answered."""
        if self._pinged:
            self.abort()
            return
        self._pinged = True
        self._write(0xC0, b"")

    def close(self) -> None:
        """Close with DISCONNECT, so the broker publishes no last will."""
        if self._transport is not None:
            self._write(0xE0, b"")
            self._transport.close()

    def abort(self) -> None:
        """Close at once; the broker publishes the last will."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self, kind: int, body: bytes) -> None:
        self._pinged = False
        if kind & 0xF0 == 0x30 and len(body) >= 2:
            end = 2 + int.from_bytes(body[:2], "big")
            topic = body[2:end].decode(errors="replace")
            if kind & 0x06:
                self._write(0x40, body[end : end + 2])
                end += 2
            self._heard(topic, body[end:])
        elif kind == 0x40 and len(body) == 2:
            self.unacked.pop(int.from_bytes(body, "big"), None)
        elif kind == 0x20 and len(body) == 2 and not self.opened.done():
            if body[1]:
                self.opened.set_exception(BrokerRefused(body[1]))
            else:
                self.opened.set_result(None)

    def _number(self) -> int:
        while True:
            self._last = self._last % 65_535 + 1
            if self._last not in self.unacked:
                return self._last

    def _write(self, kind: int, body: bytes) -> None:
        if self._transport is not None:
            self._transport.write(_framed(kind, body))


async def resolved(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host name; an IP address is returned as it is. Raises `OSError`."""
    try:
        return [str(ip_address(host))]
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]


def connect_packet(
    client: str, user: str, password: str, keepalive_s: int, will: tuple[str, bytes] | None = None
) -> bytes:
    """The CONNECT packet of a clean session. `will`: topic and payload that the broker publishes if the connection is
    lost."""
    flags = 0x02 | (0xC0 if user else 0) | (0x0C if will else 0)
    body = _text("MQTT") + bytes([4, flags]) + struct.pack("!H", keepalive_s) + _text(client)
    if will is not None:
        body += _text(will[0]) + struct.pack("!H", len(will[1])) + will[1]
    if user:
        body += _text(user) + _text(password)
    return _framed(0x10, body)


def _refused_certificate(error: Exception | None) -> str:
    """The reason why the broker refuses this side's certificate, which it gives after the handshake of TLS; empty: none."""
    said = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    alert = said.partition("_ALERT_")[2].lower().replace("_", " ")
    return alert if "certificate" in alert or alert == "unknown ca" else ""


def _packet(buffer: bytes) -> tuple[int, bytes, int] | None:
    """Return kind, body and total length in bytes of the first packet; None while its header is incomplete."""
    length, shift = 0, 0
    for at in range(1, min(len(buffer), 5)):
        length |= (buffer[at] & 0x7F) << shift
        shift += 7
        if not buffer[at] & 0x80:
            end = at + 1 + length
            return buffer[0], buffer[at + 1 : end], end
    return None if len(buffer) < 5 else (0, b"", PACKET_MAX + 1)


def _framed(kind: int, body: bytes) -> bytes:
    length, head = len(body), bytearray([kind])
    while True:
        length, low = length >> 7, length & 0x7F
        head.append(low | (0x80 if length else 0))
        if not length:
            return bytes(head) + body


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack("!H", len(content)) + content
