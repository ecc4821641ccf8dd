"""The same tasks in dramatiq: `python -m bench.tasks_dramatiq REDIS_PORT`, a worker until it is ended."""

import signal
import sys
import threading
from typing import Any

import dramatiq

from bench.messages_dramatiq import ACTOR, QUEUE, THREADS, broker
from bench.tasks_jobs import note


def send(to: Any, sent_ns: int) -> None:
    """One task, at once."""
    made: Any = dramatiq.Message(queue_name=QUEUE, actor_name=ACTOR, args=(sent_ns,), kwargs={}, options={})
    to.enqueue(made)


def work(port: int) -> None:
    """Until it is ended."""
    queue = broker(port)
    dramatiq.actor(queue_name=QUEUE, actor_name=ACTOR, broker=queue)(note)
    worker = dramatiq.Worker(queue, worker_threads=THREADS)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    worker.start()
    print("ready", flush=True)
    ended.wait()
    worker.stop()


if __name__ == "__main__":
    work(int(sys.argv[1]))
