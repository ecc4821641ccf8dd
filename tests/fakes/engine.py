"""An engine in Python: real sockets, scripted turns. It obeys words that tests send to its link socket.

`die` ends the process, `raise` raises, `not_ready` reports that, `authenticate TEXT` asks for the user of TEXT.
"""

import json
import os
import socket
from collections.abc import Sequence, Set
from typing import Any

from muster.turns import EVENTS, MORE
from muster_server._engines import Mailboxes
from muster_server.plane.engine import Event, Node, OtherCluster


class FakeEngine:
    """The methods of `plane.engine.Engine`, and a record of their calls."""

    def __init__(self, *tables: Any, **options: Any) -> None:
        """`tables`: of links, and of clients; then the settings."""
        for table in tables:
            options |= table if isinstance(table, dict) else {}
        self.options = options
        self.sockets = [_bind(options[name]) for name in ("bind", "link_bind") if options.get(name)]
        self.link = self.sockets[-1]
        self.waiting: list[Event] = [("ready",)]
        self.more = 0
        self.turns = 0
        self.answers: list[tuple[int, int | None]] = []
        self.placements: list[tuple[int, list[Node], tuple[int, int]]] = []
        self.keys = (options.get("cluster_key"), options.get("cluster_other"))
        self.allow = options.get("cluster_allow")
        self.draining = False
        self.stuck = False
        self.cut: str | None = None
        self.closed = False

    def fd(self) -> int:
        return self.link.fileno()

    def join(self, mailboxes: Mailboxes) -> int:
        raise OverflowError("what it sends goes through its socket")

    def linger(self, us: int) -> None:
        self.options["linger_us"] = us

    def turn(self) -> int:
        self.turns += 1
        while True:
            try:
                self._obey(self.link.recv(2048).decode())
            except BlockingIOError:
                break
        self.more = max(0, self.more - 1)
        return (EVENTS if self.waiting else 0) | (MORE if self.more else 0)

    def events(self) -> list[Event]:
        taken, self.waiting = self.waiting, []
        return taken

    def take_late(self) -> float:
        return 0.25

    def revoke(self, users: Set[int], tokens: Set[int]) -> None:
        """It has no sessions."""

    def answer(self, question_id: int, user: int | None, denied: str = "bad_credential", **more: Any) -> None:
        self.answers.append((question_id, user))

    def placement(
        self,
        epoch: int,
        nodes: list[Node],
        partitions: tuple[int, int],
        growth: tuple[int, int] = (0, 0),
        beside: Sequence[OtherCluster] = (),
    ) -> None:
        self.placements.append((epoch, nodes, partitions))

    def cluster_keys(
        self,
        key: tuple[int, bytes],
        other: tuple[int, bytes] | None = None,
        allow: tuple[bytes, list[tuple[int, str, bytes]], str] | None = None,
    ) -> None:
        self.keys, self.allow = (key, other), allow

    def settings(self, settings: bytes, /) -> None:
        self.options["settings"] = json.loads(settings)

    def servers(self, gateways: list[Any], proxies: list[Any]) -> None:
        self.options["servers"] = (gateways, proxies)

    def settled(self) -> bool:
        return True

    def counters(self) -> list[tuple[str, str, int]]:
        return [
            ("datagrams_received_total", "Datagrams received", 7),
            ('datagrams_dropped_total{reason="malformed"}', "Datagrams dropped", 2),
            ('datagrams_dropped_total{reason="unknown"}', "Datagrams dropped", 3),
        ]

    def gauges(self) -> list[tuple[str, str, float]]:
        return [("rooms", "Rooms known here", 2.0)]

    def status(self) -> dict[str, Any]:
        return {
            "sessions": 1,
            "links": [],
            "links_lost": [],
            "answers": self.answers,
            "epoch": self.options.get("epoch"),
            "key_ids": [key[0] for key in self.keys if key],
            "linger_us": self.options.get("linger_us"),
            "settings": self.options.get("settings"),
            "servers": self.options.get("servers"),
        }

    def rooms(self, place: int, limit: int, text: str = "", /) -> tuple[list[dict[str, Any]], int | None]:
        rest = {"joining": 0, "flow": "live", "in_force": True, "held": 2, "held_bytes": 50, "next_offset": 3}
        stream = [2, 1, 1]
        every = [{"name": f"room-{index}", "members": index, **rest, "stream": stream} for index in range(3)]
        end = place + limit
        every = [room for room in every if text in str(room["name"])]
        return every[place:end], end if end < len(every) else None

    def room(self, name: str) -> dict[str, Any] | None:
        return next((room for room in self.rooms(0, 3)[0] if room["name"] == name), None)

    def interest(self, start: tuple[int, int], limit: int, /) -> tuple[list[tuple[int, int]], tuple[int, int] | None]:
        following = {(0, 0): ([(3, 0xFEED)], (3, 1 << 63)), (3, 1 << 63): ([(4, 0xBEEF)], None)}
        return following.get(start, ([], None))

    def keep_changes(self, max: int) -> None:
        """As a router's engine; nothing changes here."""

    def take_changes(self, limit: int) -> tuple[list[tuple[int, int]], list[Any]]:
        return [], []

    def changes_kept(self) -> tuple[int, int]:
        return 0, 0

    def hint(self, gateway: int, epoch: int, rooms: list[tuple[int, int, int]]) -> int:
        return len(rooms)

    def addresses(self) -> list[tuple[str, int]]:
        return [each.getsockname()[:2] for each in self.sockets]

    def buffers(self) -> list[tuple[int, int]]:
        return [(4 << 20, 212_992) for _ in self.sockets]

    def drain(self) -> None:
        self.draining = True

    def drained(self) -> bool:
        return self.draining and not self.stuck

    def stay(self) -> None:
        self.draining = False

    def cut_off(self) -> str | None:
        return self.cut

    def close(self) -> None:
        self.closed = True
        for each in self.sockets:
            each.close()

    def _obey(self, order: str) -> None:
        word, _, rest = order.partition(" ")
        if word == "die":
            os._exit(9)
        if word == "raise":
            raise RuntimeError("asked to")
        if word == "not_ready":
            self.waiting.append(("not_ready", rest))
        if word == "authenticate":
            self.waiting.append(("authenticate", len(self.answers), rest.encode()))


def _bind(address: tuple[str, int]) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    try:
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made
