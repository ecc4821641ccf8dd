"""Code that commands share: the instance they use, its admin ports, and running a coroutine to its end."""

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
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import structlog

from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Folder, Process, Record
from muster_server.control.config import load as config
from muster_server.control.errors import TRY_LATER, ConfigError, UserError
from muster_server.control.host.addresses import address_text
from muster_server.control.host.openfiles import enough_files
from muster_server.control.host.shown import shown_json
from muster_server.control.terminal.pipes import when_unread
from muster_server.control.terminal.words import say
from muster_server.plane.spec import SpecError
from muster_server.plane.trust import shared_token

if TYPE_CHECKING:  # only commands that show tables import it
    from rich.console import Console

HTTP_S: Final = 2.0
ASKED_AT_ONCE: Final = 16
WIDTH: Final = 4_096
"""Width of a line, in columns: wider than any table."""

Reply = TypeVar("Reply")


def place(config_file: Path | None) -> Folder:
    """The folder of the configured instance."""
    return instance.folder(config.load(config_file).config)


def running(config_file: Path | None) -> Record:
    """The running `muster up` of this folder. Raises `NotRunning`."""
    return instance.find(place(config_file))


def counted(count: int, what: str) -> str:
    """Format a count with its noun."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def get(process: Process, path: str, timeout_s: float = HTTP_S) -> tuple[int, Any]:
    """Request JSON from one node's admin port. Raises `UserError` if it does not answer."""
    status, body = fetch(process, path, timeout_s)
    try:
        return status, json.loads(body)
    except ValueError:
        where = address_text(*process.admin)
        raise UserError(f"{process.name}: {where} is not a Muster node", TRY_LATER) from None


def fetch(process: Process, path: str, timeout_s: float = HTTP_S) -> tuple[int, bytes]:
    """Send a request to one node's admin port. Raises `UserError` if it does not answer."""
    host, port = process.admin
    if why := apart(process):
        raise UserError(f"{process.name} {why}", TRY_LATER)
    connection = _connection(process, timeout_s)
    try:
        connection.request("GET", path, headers=_shown(process))
        response = connection.getresponse()
        status, body = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        where = address_text(host, port)
        raise UserError(f"{process.name} does not answer on {where}: {error}; try again", TRY_LATER) from None
    finally:
        connection.close()
    if status == http.HTTPStatus.UNAUTHORIZED:
        raise ConfigError(f"{process.name} requires another token; see admin.token_file")
    if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        raise UserError(f"{process.name} {_unavailable(body)}; try again", TRY_LATER)
    return status, body


def _unavailable(body: bytes) -> str:
    try:
        return f"waits for {json.loads(body)['waits']}"
    except (ValueError, LookupError, TypeError):
        return "is ending"


def _connection(process: Process, timeout_s: float) -> http.client.HTTPConnection:
    host, port = process.admin
    if not process.access.cert_file:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=_trusting(process.access.cert_file))


@functools.cache
def _trusting(file: str) -> ssl.SSLContext:
    """A context that trusts this certificate at any address. Raises `ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        context.load_verify_locations(file)
    except OSError as error:
        raise ConfigError(f"admin.tls_cert_file: cannot use {file}: {error.strerror or error}") from None
    return context


def _shown(process: Process) -> dict[str, str]:
    """The header with the token, but never in the clear to another host. Raises `ConfigError`."""
    access = process.access
    if not access.token_file or not (access.cert_file or ipaddress.ip_address(process.admin[0]).is_loopback):
        return {}
    try:
        return {"Authorization": f"Bearer {shared_token(access.token_file).decode('latin-1')}"}
    except SpecError as error:
        raise ConfigError(f"admin.token_file: {error}") from None


def apart(process: Process) -> str:
    """The reason why this host cannot ask a node of another host; empty if it can try."""
    host = process.admin[0]
    if not host:
        return "has registered no admin address"
    if not ipaddress.ip_address(host).is_loopback or is_of_this_machine(process.link[0]):
        return ""
    where = address_text(*process.admin)
    return f"answers only on its own host, {process.link[0]}, at {where}; set serve.admin there to ask it from here"


@functools.cache
def is_of_this_machine(host: str) -> bool:
    """Whether the address belongs to this host."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def together(
    ask: Callable[[Process], Reply], processes: Sequence[Process], at_once: int = ASKED_AT_ONCE
) -> list[Reply]:
    """Ask all, and return the answers in order. Several are asked at a time, so that time-outs of silent nodes do not
    add up."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, processes))


def tried(process: Process, path: str) -> tuple[int, Any] | UserError:
    """The result of `get`, or the error."""
    try:
        return get(process, path)
    except UserError as error:
        return error


class Asking:
    """Asks several nodes. Nodes that do not answer are named on stderr, and the exit code reports missing answers."""

    def __init__(self) -> None:
        self._answered = False
        self._silent: list[UserError] = []

    def get(self, process: Process, path: str) -> Any:
        """A node's answer; None if it does not answer or has no such page."""
        return self._heard(tried(process, path))

    def all(self, processes: Sequence[Process], path: str) -> list[Any]:
        """The same for each, in order."""
        return [self._heard(each) for each in together(lambda process: tried(process, path), processes)]

    def _heard(self, said: tuple[int, Any] | UserError) -> Any:
        if isinstance(said, UserError):
            self._silent.append(said)
            return None
        self._answered = True
        status, answer = said
        return answer if status == http.HTTPStatus.OK else None

    def code(self) -> int:
        """The exit code, after all were asked. Raises `UserError` if no node answered."""
        if self._silent and not self._answered:
            raise self._silent[0]
        for error in self._silent:
            say(f"muster: {error}")
        return TRY_LATER if self._silent else 0


def typed(text: str) -> bytes:
    """An argument as bytes, even if it is not valid text."""
    return text.encode(errors="surrogateescape")


def print_json(document: Any, *, line: bool = False) -> None:
    """Print one document on stdout; or one `line` of several, flushed at once."""
    said = shown_json(msgspec.json.encode(document))
    sys.stdout.buffer.write((said if line else msgspec.json.format(said, indent=2)) + b"\n")
    if line:
        sys.stdout.buffer.flush()


def out() -> "Console":
    """The console for data: not wrapped; colours only on a terminal, and never with NO_COLOR."""
    from muster_server.control.terminal.escaped import Escaped

    return Escaped(soft_wrap=True, highlight=False, markup=False, emoji=False, width=WIDTH)


def screen() -> "Console":
    """The console for live tables: as wide as the terminal; longer lines are cut."""
    from muster_server.control.terminal.escaped import Escaped

    return Escaped(highlight=False, markup=False, emoji=False)


@contextlib.contextmanager
def verdict_after() -> Iterator[None]:
    """Wraps the output of a command whose exit code matters: if the reader closes it early, the exit code still stands."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for what else is said
    except SystemExit as end:  # rich raises this, after it has handled the pipe
        if not isinstance(end.__context__, BrokenPipeError):
            raise


def errors_alone() -> structlog.typing.FilteringBoundLogger:
    """The log of engines inside a command: on stderr, errors only."""
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(sys.stderr), wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR)
    )
    return logger


def run(work: Coroutine[Any, Any, int], *, endless: bool = False, streams: bool = False) -> int:
    """Run to the end and return the exit code. SIGINT, SIGTERM and the loss of the terminal start the end.

    An `endless` command then exits with 0; others have not finished and exit with 128 plus the signal. A command that
    `streams` exits with 0 when the reader of its stdout has closed it.
    """
    until_signal = _until_signal(work, endless, streams)
    with contextlib.closing(work), contextlib.closing(until_signal):  # closed even if they never start
        enough_files()
        import uvloop

        return uvloop.run(until_signal)


async def _until_signal(work: Coroutine[Any, Any, int], endless: bool, streams: bool) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    end = _End(task)
    if streams:
        when_unread(1, task.cancel)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # started with nohup
            loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if endless or not end.began_by:  # without a signal the reader has closed stdout
            return 0
        say("muster: interrupted")
        return 128 + end.began_by


class _End:
    """The signals' handler. The first signal starts the end. Later only Ctrl-C matters, after a warning."""

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
            say("muster: draining; Ctrl-C again stops it at once, and accepted messages may be lost")
