"""Redis pub/sub over RESP: nothing on disk, no limit on its queues."""

import socket
from pathlib import Path

from bench.peers.peer import ROOM, Peer, expect


class Redis(Peer):
    name = "redis"
    binaries = ("redis-server", "valkey-server")
    package = "redis-server"

    def command(self, binary: str, directory: Path) -> list[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(directory),
            "daemonize": "no",
            "save": "",
            "appendonly": "no",
            "loglevel": "warning",
            "maxclients": "20000",
            "tcp-backlog": "4096",
        }
        argv = [binary]
        for key, value in options.items():
            argv += [f"--{key}", value]
        return [*argv, "--client-output-buffer-limit", "pubsub", "0", "0", "0"]

    def subscribe(self, sock: socket.socket, index: int) -> None:
        sock.sendall(_array(b"SUBSCRIBE", ROOM.encode()))
        expect(sock, b"*3\r\n" + _bulk(b"subscribe") + _bulk(ROOM.encode()) + b":1\r\n")

    def greet(self, sock: socket.socket) -> None:
        sock.sendall(_array(b"PING"))
        expect(sock, b"+PONG\r\n")

    def publish(self, payload_bytes: int) -> tuple[bytes, bytes]:
        return b"*3\r\n" + _bulk(b"PUBLISH") + _bulk(ROOM.encode()) + b"$%d\r\n" % payload_bytes, b"\r\n"

    def delivery(self, payload_bytes: int) -> tuple[bytes, bytes]:
        return b"*3\r\n" + _bulk(b"message") + _bulk(ROOM.encode()) + b"$%d\r\n" % payload_bytes, b"\r\n"


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _array(*items: bytes) -> bytes:
    return b"*%d\r\n" % len(items) + b"".join(map(_bulk, items))
