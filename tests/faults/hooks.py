"""A server that takes callbacks: what it was called with, and when. Runs in threads of this process."""

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

Answer = Callable[["Handler"], None]
QUEUE: Final = 1_024


@dataclass(frozen=True, slots=True)
class Called:
    """One callback. `at` in ms since 1970, when its head had come."""

    path: str
    id: str
    timestamp: int
    signature: str
    kind: str
    body: bytes
    at: float


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as its server says."""

    protocol_version = "HTTP/1.1"
    server: "Hooks"

    def do_POST(self) -> None:
        at = time.time() * 1_000
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = self.headers
        called = Called(
            self.path,
            headers["webhook-id"],
            int(headers["webhook-timestamp"]),
            headers["webhook-signature"],
            headers["content-type"],
            body,
            at,
        )
        self.server.take(called)
        self.server.answer(self)

    def say(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A whole answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def good(handler: Handler) -> None:
    handler.say(204)


class Hooks(http.server.ThreadingHTTPServer):
    """`calls` grows. `answer` may be replaced at any time."""

    daemon_threads = True
    request_queue_size = QUEUE

    def __init__(self, answer: Answer = good) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.calls: list[Called] = []
        self._lock = threading.Lock()

    def take(self, called: Called) -> None:
        with self._lock:
            self.calls.append(called)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def ids(self) -> list[str]:
        with self._lock:
            return [call.id for call in self.calls]

    def of(self, id: str) -> list[Called]:
        with self._lock:
            return [call for call in self.calls if call.id == id]

    def handle_error(self, *_: Any) -> None:
        """A peer that was killed is no error."""


@contextmanager
def hooks(answer: Answer = good) -> Iterator[Hooks]:
    """Serve while the block lasts."""
    server = Hooks(answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
