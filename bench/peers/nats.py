"""NATS core: one scheduler thread, as it has one core, and large queues for subscribers."""

import socket
from pathlib import Path

from bench.peers.peer import ROOM, Peer, expect, read_line

CONNECT = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
SID = b"1"


class Nats(Peer):
    name = "nats"
    binaries = ("nats-server",)
    package = "nats-server"
    lines = True

    def command(self, binary: str, directory: Path) -> list[str]:
        config = directory / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{self.port}\n"
            "max_pending: 1073741824\n"
            'write_deadline: "60s"\n'
            'ping_interval: "10m"\n'
            "max_connections: 20000\n"
            "logtime: false\n"
        )
        return [binary, "-c", str(config)]

    def environment(self) -> dict[str, str]:
        return {"GOMAXPROCS": "1"}

    def subscribe(self, sock: socket.socket, index: int) -> None:
        self._hello(sock, b"SUB %b %b\r\n" % (ROOM.encode(), SID))

    def greet(self, sock: socket.socket) -> None:
        self._hello(sock, b"")

    def _hello(self, sock: socket.socket, command: bytes) -> None:
        info = read_line(sock)
        if not info.startswith(b"INFO "):
            raise ConnectionError(f"the server greeted with {info!r}")
        sock.sendall(CONNECT + command + b"PING\r\n")
        expect(sock, b"PONG\r\n")

    def publish(self, payload_bytes: int) -> tuple[bytes, bytes]:
        return b"PUB %b %d\r\n" % (ROOM.encode(), payload_bytes), b"\r\n"

    def delivery(self, payload_bytes: int) -> tuple[bytes, bytes]:
        return b"MSG %b %b %d\r\n" % (ROOM.encode(), SID, payload_bytes), b"\r\n"
