"""`python -m muster.work MODULE:TASKS`, and `muster work` of the server: a worker for the tasks of a program.

SIGTERM and SIGINT end it: it gives back what it has not begun, and finishes the rest. Exit codes: 0 ok, 1 failure, 2 a wrong
word, 69 the HTTP face refuses the key or has no such topic.
"""

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence

from .errors import Invalid, MusterError, Refused
from .tasks import Order, Tasks, Worker
from .tasks.worker import AT_ONCE, DRAIN_S

FAILURE, USAGE, UNAVAILABLE = 1, 2, 69


def main(words: Sequence[str] | None = None, prog: str = "python -m muster.work") -> int:
    """Run one worker, and return its exit code."""
    try:
        chosen = _parser(prog).parse_args(words)
    except SystemExit as end:
        return int(end.code or 0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        tasks = found(chosen.tasks)
        order = Order.parse(chosen.topics) if chosen.topics else None
        return asyncio.run(_run(tasks, order, chosen))
    except Refused as error:
        return _fail(str(error), UNAVAILABLE)
    except Invalid as error:
        return _fail(str(error), USAGE)
    except MusterError as error:
        return _fail(str(error), FAILURE)


def _fail(words: str, code: int) -> int:
    print(f"muster: {words}", file=sys.stderr)
    return code


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Run the tasks of a program (docs/tasks.md).",
        epilog=f"Example: {prog} portal.jobs:tasks --at-once 8 --topics high,low=1/4",
    )
    parser.add_argument("tasks", metavar="MODULE:TASKS", help="The module, and the name of its muster.tasks.Tasks.")
    parser.add_argument(
        "--at-once", type=int, default=AT_ONCE, metavar="N", help=f"Limit of tasks at once [{AT_ONCE}]."
    )
    parser.add_argument(
        "--topics",
        metavar="TOPICS",
        help="Topics in order, for example high,low=1/4 [those of all handlers, in their order].",
    )
    parser.add_argument(
        "--drain",
        type=float,
        default=DRAIN_S,
        metavar="SECONDS",
        help=f"Limit for running tasks to finish at the end [{DRAIN_S:g}].",
    )
    return parser


def found(text: str) -> Tasks:
    """The tasks of `MODULE:NAME`, from the present folder or an installed package. Raises `Invalid`."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise Invalid(f"invalid tasks {text!r:.80} (expected MODULE:NAME, for example portal.jobs:tasks)")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        there = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise Invalid(f"no module {module!r:.80} here; start the worker in the folder that has it") from None
    if not isinstance(there, Tasks):
        raise Invalid(f"{text!r:.80} is not a muster.tasks.Tasks")
    if not there.handlers:
        raise Invalid(f"{text!r:.80} has no handlers: import the modules that declare them in {module}")
    return there


async def _run(tasks: Tasks, order: Order | None, chosen: argparse.Namespace) -> int:
    worker = Worker(tasks, at_once=chosen.at_once, order=order, drain_s=chosen.drain)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    log = logging.getLogger("muster.tasks")
    log.info("works on %s, %d tasks at once", ", ".join(worker.order.topics), chosen.at_once)
    try:
        await worker.run(stop)
    finally:
        await tasks.close()
        said = worker.figures
        log.info(
            "%d done, %d to be tried again, %d dead, %d lost, %d given back",
            said.done,
            said.again,
            said.dead,
            said.lost,
            said.back,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
