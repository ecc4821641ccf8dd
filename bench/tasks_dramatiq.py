"""The same tasks in dramatiq: `python -m bench.tasks_dramatiq REDIS_PORT`, a worker until it is ended."""

import sys
from typing import Any

import dramatiq

from bench.messages_dramatiq import ACTOR, QUEUE, broker, serve
from bench.tasks_jobs import note


def send(to: Any, sent_ns: int) -> None:
    """One task, at once."""
    made: Any = dramatiq.Message(queue_name=QUEUE, actor_name=ACTOR, args=(sent_ns,), kwargs={}, options={})
    to.enqueue(made)


def work(port: int) -> None:
    """Until it is ended."""
    queue = broker(port)
    dramatiq.actor(queue_name=QUEUE, actor_name=ACTOR, broker=queue)(note)
    serve(queue)


if __name__ == "__main__":
    work(int(sys.argv[1]))
