"""What several commands share: the instance they mean, its admin ports, and how a coroutine is run to its end."""

import asyncio
import contextlib
import functools
import http.client
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog
from rich.console import Console

from control.cluster import instance
from control.cluster.instance import Folder, Process, Record
from control.config import load as config
from control.console.words import say
from control.errors import TRY_LATER, UserError
from control.host.addresses import address_text
from control.host.openfiles import enough_files

HTTP_S: Final = 2.0
ASKED_AT_ONCE: Final = 16
WIDTH: Final = 4_096
"""Of a line, in columns: more than any table has."""

Said = TypeVar("Said")


def place(config_file: Path | None) -> Folder:
    """The folder of the instance that the configuration means."""
    return instance.folder(config.load(config_file).config)


def running(config_file: Path | None) -> Record:
    """The `muster up` that runs here. Raises `NotRunning`."""
    return instance.find(place(config_file))


def counted(count: int, what: str) -> str:
    """So many of something, in words."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def get(process: Process, path: str, timeout_s: float = HTTP_S) -> tuple[int, Any]:
    """Ask one node's admin port for JSON. Raises `UserError` when it does not answer."""
    status, body = fetch(process, path, timeout_s)
    try:
        return status, json.loads(body)
    except ValueError:
        where = address_text(*process.admin)
        raise UserError(f"{process.name}: {where} is not a Muster node", TRY_LATER) from None


def fetch(process: Process, path: str, timeout_s: float = HTTP_S) -> tuple[int, bytes]:
    """Ask one node's admin port. Raises `UserError` when it does not answer."""
    host, port = process.admin
    if why := apart(process):
        raise UserError(f"{process.name} {why}", TRY_LATER)
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        status, body = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        where = address_text(host, port)
        raise UserError(f"{process.name} does not answer on {where}: {error}; try again", TRY_LATER) from None
    finally:
        connection.close()
    if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        raise UserError(f"{process.name} is about to end; try again", TRY_LATER)
    return status, body


def apart(process: Process) -> str:
    """Why a node of another host cannot be asked from here; empty where it can be tried."""
    host = process.admin[0]
    if not host:
        return "has registered no admin address"
    if not ipaddress.ip_address(host).is_loopback or is_of_this_machine(process.link[0]):
        return ""
    where = address_text(*process.admin)
    return f"answers only on its own host, {process.link[0]}, at {where}; set serve.admin there to ask it from here"


@functools.cache
def is_of_this_machine(host: str) -> bool:
    """Whether an address of a node is one of this host's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def together(ask: Callable[[Process], Said], processes: Sequence[Process], at_once: int = ASKED_AT_ONCE) -> list[Said]:
    """What each says, in their order. Several are asked at a time, lest those that do not answer add up."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, processes))


def tried(process: Process, path: str) -> tuple[int, Any] | UserError:
    """As `get`; or why there is no answer."""
    try:
        return get(process, path)
    except UserError as error:
        return error


class Asking:
    """Asks several nodes. Who does not answer is named on stderr, and the exit code says that something is missing."""

    def __init__(self) -> None:
        self._answered = False
        self._silent: list[UserError] = []

    def get(self, process: Process, path: str) -> Any:
        """What a node says; None where it does not answer or has nothing at this path."""
        return self._heard(tried(process, path))

    def all(self, processes: Sequence[Process], path: str) -> list[Any]:
        """The same of each, in their order."""
        return [self._heard(each) for each in together(lambda process: tried(process, path), processes)]

    def _heard(self, said: tuple[int, Any] | UserError) -> Any:
        if isinstance(said, UserError):
            self._silent.append(said)
            return None
        self._answered = True
        status, answer = said
        return answer if status == http.HTTPStatus.OK else None

    def code(self) -> int:
        """The exit code, once all are asked. Raises `UserError` when nobody answered."""
        if self._silent and not self._answered:
            raise self._silent[0]
        for error in self._silent:
            say(f"muster: {error}")
        return TRY_LATER if self._silent else 0


def typed(text: str) -> bytes:
    """A word of the command as bytes; those that are no text too, as they were typed."""
    return text.encode(errors="surrogateescape")


def print_json(document: Any, *, line: bool = False) -> None:
    """One document on stdout; or a `line` of several, to be read at once."""
    said = msgspec.json.encode(document)
    sys.stdout.buffer.write((said if line else msgspec.json.format(said, indent=2)) + b"\n")
    if line:
        sys.stdout.buffer.flush()


def out() -> Console:
    """The console for data, which is shown as it is and not folded; colours only for eyes, never with NO_COLOR."""
    return Console(soft_wrap=True, highlight=False, markup=False, emoji=False, width=WIDTH)


def screen() -> Console:
    """The console for what is drawn again and again: as wide as the terminal, what is longer is cut."""
    return Console(highlight=False, markup=False, emoji=False)


@contextlib.contextmanager
def verdict_after() -> Iterator[None]:
    """While that is printed whose verdict is the exit code: who reads no more has enough, and the verdict stands."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for what else is said
    except SystemExit as end:  # as rich says it, which sees to the rest
        if not isinstance(end.__context__, BrokenPipeError):
            raise


def errors_alone() -> structlog.typing.FilteringBoundLogger:
    """The log of what a command uses of the roles: on stderr, and nothing but errors."""
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(sys.stderr), wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR)
    )
    return logger


def run(work: Coroutine[Any, Any, int], *, endless: bool = False) -> int:
    """Run to the end and return the exit code; SIGINT, SIGTERM and a terminal that goes away begin the end.

    For what is `endless` that is an end like others, 0; who was asked something has not answered: 128 and the signal.
    """
    until_signal = _until_signal(work, endless)
    with contextlib.closing(work), contextlib.closing(until_signal):  # also where they never begin
        enough_files()
        import uvloop

        return uvloop.run(until_signal)


async def _until_signal(work: Coroutine[Any, Any, int], endless: bool) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    end = _End(task)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if endless:
            return 0
        say("muster: interrupted")
        return 128 + end.began_by


class _End:
    """What signals do. The first one begins the end; of others only Ctrl-C means more, once it was said what it costs."""

    def __init__(self, task: "asyncio.Future[int]") -> None:
        self._task = task
        self._warned = False
        self.began_by = 0

    def __call__(self, number: int) -> None:
        if not self.began_by:
            self.began_by = number
            self._task.cancel()
        elif number == signal.SIGINT and self._warned:
            raise KeyboardInterrupt
        elif number == signal.SIGINT:
            self._warned = True
            say("muster: draining; Ctrl-C once more ends it at once, and accepted messages may be lost")
