"""Dramatiq's messages with a delay, over Redis: the queue, and a worker that calls back.

`python -m bench.messages_dramatiq REDIS_PORT HOOK_URL LOOKS`. Its threads each keep a connection. A worker that dies has its
messages given to others after `HEARTBEAT_MS`, here 5 s instead of a minute; LOOKS calls in a million look for dead ones.
"""

import http.client
import signal
import sys
import threading
from typing import Any, Final
from urllib.parse import urlsplit

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from muster.clock import now_ms

QUEUE: Final = "orders"
ACTOR: Final = "call_back"
HEARTBEAT_MS: Final = 5_000
LOOKS: Final = 1_000
"""As dramatiq has it."""
THREADS: Final = 8


def broker(port: int, looks: int = LOOKS) -> Any:
    """A connection to the queue. Close it."""
    kind: Any = RedisBroker
    made = kind(port=port, heartbeat_timeout=HEARTBEAT_MS, maintenance_chance=looks)
    made.declare_queue(QUEUE)
    return made


def message(to: Any, due_at: int, body: str) -> None:
    """Send one."""
    made: Any = dramatiq.Message(queue_name=QUEUE, actor_name=ACTOR, args=(body,), kwargs={}, options={})
    to.enqueue(made, delay=max(0, due_at - now_ms()))


def serve(queue: Any) -> None:
    """Run a worker of the queue until SIGTERM."""
    worker = dramatiq.Worker(queue, worker_threads=THREADS)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    worker.start()
    print("ready", flush=True)
    ended.wait()
    worker.stop()


def work(port: int, url: str, looks: int) -> None:
    """Until it is ended."""
    queue = broker(port, looks)
    local, place = threading.local(), urlsplit(url)

    def call_back(body: str) -> None:
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection(place.netloc, timeout=10)
        local.connection.request("POST", place.path, body.encode(), {"content-type": "application/json"})
        answer = local.connection.getresponse()
        answer.read()
        if answer.status // 100 != 2:
            raise ConnectionError(f"the target said {answer.status}")

    dramatiq.actor(queue_name=QUEUE, broker=queue)(call_back)
    serve(queue)


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
