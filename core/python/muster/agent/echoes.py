"""ICMP echoes by a socket that needs no rights, where the kernel has them (net.ipv4.ping_group_range).

Owns the packets and their times. It must not know targets. The kernel fills in the id and the checksum, and hands over
the answers to this socket alone.
"""

import asyncio
import contextlib
import errno
import secrets
import socket
import struct
import time
from typing import Any, Final

from .connects import reason
from .reach import Address

TOKEN_BYTES: Final = 8
REQUEST: Final = {4: 8, 6: 128}
REPLY: Final = {4: 0, 6: 129}
READ_BYTES: Final = 65_536
_PROTOCOL: Final = {4: socket.IPPROTO_ICMP, 6: socket.IPPROTO_ICMPV6}
_TTL: Final = {
    4: (socket.IPPROTO_IP, getattr(socket, "IP_RECVTTL", 12), getattr(socket, "IP_TTL", 2)),
    6: (socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, socket.IPV6_HOPLIMIT),
}
"""For each family: the level, the option that asks for the hops left, and the message that has them."""


def opened(address: Address) -> socket.socket | None:
    """A socket for echoes to this address; None: the kernel gives this user none. Raises `OSError` without a route."""
    try:
        made = socket.socket(address.socket_family, socket.SOCK_DGRAM, _PROTOCOL[address.family])
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EPERM, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT}:
            return None
        raise
    try:
        made.setblocking(False)
        level, option, _ = _TTL[address.family]
        made.setsockopt(level, option, 1)
        made.connect((address.ip, 0))
    except BaseException:
        made.close()
        raise
    return made


class Echoes:
    """Sends echoes and takes their answers, on a socket of `opened`."""

    def __init__(self, made: socket.socket, family: int, size: int) -> None:
        """`size`: bytes behind the ICMP header, from `TOKEN_BYTES`."""
        self.ttl: int | None = None
        """The hops left in the last answer."""
        self.duplicates = 0
        self._socket, self._family = made, family
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._fill = bytes(size - TOKEN_BYTES)
        self._sent: dict[int, float] = {}
        self._rtt: dict[int, float] = {}
        self._wrong: dict[int, str] = {}
        self._some = asyncio.Event()

    async def run(self, packets: int, interval_s: float, wait_s: float) -> list[dict[str, Any]]:
        """For each packet `{"rtt": MS}`, `{"error": TEXT}` or, without an answer within `wait_s`, `{"x": "*"}`."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._readable)
        try:
            for number in range(packets):
                self._send(number)
                if number + 1 < packets:
                    await asyncio.sleep(interval_s)
            until = loop.time() + wait_s
            while len(self._rtt) + len(self._wrong) < packets:
                self._some.clear()
                try:
                    async with asyncio.timeout_at(until):
                        await self._some.wait()
                except TimeoutError:
                    break
        finally:
            loop.remove_reader(self._socket)
        return [self._said(number, wait_s) for number in range(packets)]

    def _said(self, number: int, wait_s: float) -> dict[str, Any]:
        rtt = self._rtt.get(number)
        if rtt is not None and rtt <= wait_s * 1000:
            return {"rtt": round(rtt, 3)}
        return {"error": self._wrong[number]} if number in self._wrong else {"x": "*"}

    def _send(self, number: int) -> None:
        packet = struct.pack("!BBHHH", REQUEST[self._family], 0, 0, 0, number) + self._token + self._fill
        self._sent[number] = time.perf_counter()
        try:
            self._socket.send(packet)
        except OSError as error:
            self._wrong[number] = reason(error)

    def _readable(self) -> None:
        now = time.perf_counter()
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    data, more, _, _ = self._socket.recvmsg(READ_BYTES, 256)
                except BlockingIOError:
                    raise
                except OSError as error:  # what a router said of an earlier packet
                    self._blame(reason(error))
                    continue
                self._answer(data, more, now)

    def _blame(self, text: str) -> None:
        waiting = [number for number in self._sent if number not in self._rtt and number not in self._wrong]
        if waiting:
            self._wrong[waiting[0]] = text
            self._some.set()

    def _answer(self, data: bytes, more: list[tuple[int, int, bytes]], now: float) -> None:
        if len(data) < 8 + TOKEN_BYTES or data[0] != REPLY[self._family] or data[8 : 8 + TOKEN_BYTES] != self._token:
            return
        number = int.from_bytes(data[6:8], "big")
        if number not in self._sent:
            return
        if number in self._rtt:
            self.duplicates += 1
            return
        level, _, kind = _TTL[self._family]
        for each in more:
            if each[:2] == (level, kind) and len(each[2]) >= 4:
                self.ttl = int.from_bytes(each[2][:4], "little")
        self._rtt[number] = (now - self._sent[number]) * 1000
        self._some.set()
