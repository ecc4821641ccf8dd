"""Mosquitto, MQTT 3.1.1 at QoS 0: nothing on disk, no limit on its queues."""

import os
import socket
from pathlib import Path

from bench.peers.peer import ROOM, Peer, expect


class Mosquitto(Peer):
    name = "mosquitto"
    binaries = ("mosquitto",)
    package = "mosquitto"

    def command(self, binary: str, directory: Path) -> list[str]:
        config = directory / "mosquitto.conf"
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            "persistence false",
            "log_type error",
            "connection_messages false",
            "max_inflight_messages 0",
            "max_queued_messages 0",
            "set_tcp_nodelay true",
            "sys_interval 0",
        ]
        if os.geteuid() == 0:
            lines.append("user root")  # else it changes to a user that may not enter the private directory
        config.write_text("\n".join(lines) + "\n")
        return [binary, "-c", str(config)]

    def subscribe(self, sock: socket.socket, index: int) -> None:
        self._connect_as(sock, f"subscriber{index}")
        sock.sendall(_packet(0x82, (1).to_bytes(2, "big") + _text(ROOM) + b"\0"))
        expect(sock, b"\x90\x03\x00\x01\x00")

    def greet(self, sock: socket.socket) -> None:
        self._connect_as(sock, "publisher")

    def _connect_as(self, sock: socket.socket, client: str) -> None:
        clean_session, keepalive = b"\x02", b"\0\0"
        sock.sendall(_packet(0x10, _text("MQTT") + b"\x04" + clean_session + keepalive + _text(client)))
        expect(sock, b"\x20\x02\x00\x00")

    def publish(self, payload_bytes: int) -> tuple[bytes, bytes]:
        return _header(0x30, len(_text(ROOM)) + payload_bytes) + _text(ROOM), b""

    def delivery(self, payload_bytes: int) -> tuple[bytes, bytes]:
        return self.publish(payload_bytes)


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def _header(kind: int, length: int) -> bytes:
    """Fixed header with the remaining length in groups of 7 bits (MQTT 3.1.1, section 2.2.3)."""
    groups = bytearray()
    while True:
        group, length = length & 127, length >> 7
        groups.append(group | (128 if length else 0))
        if not length:
            return bytes([kind]) + bytes(groups)


def _packet(kind: int, body: bytes) -> bytes:
    return _header(kind, len(body)) + body
