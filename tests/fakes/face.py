"""Sends and cancels of an HTTP face in memory, for clients of delayed messages: nothing fires until a test says so."""

import http.server
import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Held:
    """A message. `state` as in the schedule; `due_at` in ms since 1970, None: at once; `in_ms` as it was sent."""

    topic: str
    id: str
    type: str
    body: bytes
    due_at: int | None
    in_ms: int | None
    state: str = "scheduled"
    sends: int = 1


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "Face"

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        status, answer = self.server.ask(urlsplit(self.path).path.split("/")[4:], said)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Face(http.server.ThreadingHTTPServer):
    """`topics`: those that exist. `away`: it refuses everything."""

    daemon_threads = True

    def __init__(self, *topics: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.topics, self.away = set(topics), False
        self._held: dict[tuple[str, str], Held] = {}
        self._withdrawn: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """A client that was killed is no error."""

    def ask(self, words: list[str], said: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """What the face answers to `TOPIC/messages` or `TOPIC/messages/ID/cancel`."""
        with self._lock:
            if self.away:
                return 503, {"code": "unavailable", "detail": "no node"}
            if words[0] not in self.topics:
                return 404, {"code": "not_found", "detail": f"no topic {words[0]}"}
            return self._send(words[0], said) if len(words) == 2 else self._cancel((words[0], words[2]))

    def _send(self, topic: str, said: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if said.get("for_topic", topic) not in self.topics:
            return 404, {"code": "not_found", "detail": f"no topic {said['for_topic']}"}
        place, body = (topic, said["id"]), b64decode(said["base64"])
        held = self._held.get(place)
        if held is not None and (held.type, held.body) != (said["type"], body):
            return 409, {"code": "conflict", "detail": "another message"}
        if held is None:
            state = "cancelled" if place in self._withdrawn else "scheduled"
            held = self._held[place] = Held(
                *place, said["type"], body, said.get("at"), said.get("in_ms"), state, sends=0
            )
        held.sends += 1
        return 200, {
            "id": held.id,
            "due_at": held.due_at or 0,
            "state": held.state,
            "duplicate": held.sends > 1,
        }

    def _cancel(self, place: tuple[str, str]) -> tuple[int, dict[str, Any]]:
        held = self._held.get(place)
        if held is None:
            self._withdrawn.add(place)
            return 200, {"id": place[1], "outcome": "unknown"}
        if held.state not in {"scheduled", "cancelled"}:
            return 200, {"id": held.id, "outcome": "already fired"}
        held.state = "cancelled"
        return 200, {"id": held.id, "outcome": "done", "state": held.state, "due_at": held.due_at or 0}

    def held(self, topic: str) -> list[Held]:
        """The messages of a topic, in the order in which they came."""
        with self._lock:
            return [each for (of, _), each in self._held.items() if of == topic]

    def take(self, topic: str, id: str) -> bytes | None:
        """Begin a callback: its body; None if the message does not wait."""
        with self._lock:
            held = self._held[topic, id]
            if held.state != "scheduled":
                return None
            held.state = "firing"
            return held.body

    def end(self, topic: str, id: str, *, well: bool) -> None:
        """End a callback: done, or due again."""
        with self._lock:
            self._held[topic, id].state = "done" if well else "scheduled"


@contextmanager
def face(*topics: str) -> Iterator[Face]:
    """Serve while the block lasts."""
    server = Face(*topics)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
