"""The command `muster` in processes that have loaded it already: most of a short command is its start.

A server, one for each module that stands for the command, loads it once and forks for every call. The process of a call has
the words, environment, folder and standard streams that the call names, and ends as the command ends. A command whose
caller is gone, as after Ctrl-C, is killed. What happens while the command is loaded is not seen here: tests of that start
Python themselves.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from subprocess import DEVNULL, PIPE
from typing import IO, Any, Final, NoReturn, Self

from tests.documents import ROOT
from tests.waiting import PATIENT_S

LOADED: Final = (
    "muster_server.control.cli",
    "muster_server.control.cluster",
    "muster_server.control.terminal",
    "muster_server.control.doctor",
    "muster_server.control.node",
    "muster_server.control.registry",
    "muster_server.systems.rooms",
    "muster_server.systems.rooms",
)
"""Packages whose modules words of the command load when they are used."""
MESSAGE_MAX: Final = 1 << 17
STDERR: Final = 2
FLUSH_FAILED: Final = 120
"""Python's exit code where a standard stream cannot be flushed."""
_SERVES: Final = b"serves\n"


class Process:
    """A running command, in the form of `subprocess.Popen`."""

    def __init__(self, call: socket.socket, words: Sequence[str], streams: Sequence[IO[Any] | None]) -> None:
        self.args = list(words)
        self.stdin, self.stdout, self.stderr = streams
        """Our ends of pipes."""
        self._call = call
        self.pid = int(call.recv(MESSAGE_MAX))
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        with contextlib.suppress(BlockingIOError):
            self._heard(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""
        try:
            return self._heard(timeout)
        except TimeoutError:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout) from None

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """All that it still says on both pipes, until its end. Raises `subprocess.TimeoutExpired`."""
        if self.stdin is not None:
            self.stdin.close()
        streams = [None if stream is None or stream.closed else stream for stream in (self.stdout, self.stderr)]
        with ThreadPoolExecutor(len(streams)) as threads:
            reading = [stream and threads.submit(stream.read) for stream in streams]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()  # else its pipes stay open
                raise
            said = [each and each.result() for each in reading]
        for stream in filter(None, streams):
            stream.close()
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        """Nothing if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its end may not have been told yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _heard(self, timeout: float | None) -> int:
        if self.returncode is None:
            self._call.settimeout(timeout)
            self.returncode = int(self._call.recv(MESSAGE_MAX))
            self._call.close()
        return self.returncode


class Server:
    """A process that runs the command as `module` prepares it, and ends with this one."""

    def __init__(self, module: str) -> None:
        name = secrets.token_hex(16)
        self._address = f"\0{name}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", module, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == _SERVES
        atexit.register(self._process.communicate)  # which ends its standard input

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"", seconds: float = PATIENT_S
    ) -> subprocess.CompletedProcess[bytes]:
        """One command to its end. Raises `subprocess.TimeoutExpired`."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.start(words, environment, stdin=PIPE, stdout=out, stderr=err)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as source:  # a command need not read all of it
                source.write(stdin)
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(list(words), code, out.read(), err.read())

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: IO[Any] | int = DEVNULL,
        stdout: IO[Any] | int = DEVNULL,
        stderr: IO[Any] | int = STDERR,
        text: bool = False,
    ) -> Process:
        """A command that goes on. Streams as for `subprocess.Popen`, `text` too."""
        call = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        call.settimeout(PATIENT_S)
        call.connect(self._address)
        ours: list[IO[Any] | None] = []
        theirs: list[int] = []
        with contextlib.ExitStack() as stack:
            for given, reads in ((stdin, True), (stdout, False), (stderr, False)):
                end: IO[Any] | None = None
                if given == DEVNULL:
                    number = os.open(os.devnull, os.O_RDWR)
                    stack.callback(os.close, number)
                elif given == PIPE:
                    number, kept = os.pipe() if reads else reversed(os.pipe())
                    stack.callback(os.close, number)
                    end = os.fdopen(kept, ("w" if reads else "r") + ("" if text else "b"))
                else:
                    number = given if isinstance(given, int) else given.fileno()
                theirs.append(number)
                ours.append(end)
            socket.send_fds(call, [json.dumps([list(words), dict(environment)]).encode()], theirs)
        return Process(call, words, ours)


_lock: Final = threading.Lock()
_servers: Final[dict[str, Server]] = {}


def server(module: str) -> Server:
    """That of this module, which is started for the first call, of whichever thread."""
    with _lock:
        if module not in _servers:
            _servers[module] = Server(module)
        return _servers[module]


# --- the server ------------------------------------------------------------------------------------------------------


def serve(module: str, name: str) -> list[str]:
    """Fork for every call until the standard input ends. Returns in the process of a call alone, with its words."""
    importlib.import_module(module)
    for package in LOADED:
        for each in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            if not each.name.endswith(".__main__"):
                importlib.import_module(each.name)
    from muster_server.control.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()):
        for word in ("--help", "version"):  # what the first call loads and fills is there for all
            main([word])
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{name}")
        listener.listen(64)
        os.write(1, _SERVES)
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)  # else each call would hold up the reader of this one's end
        while True:
            if 0 in select.select([0, listener.fileno()], [], [])[0]:
                os._exit(0)
            call, _ = listener.accept()
            if os.fork() == 0:
                break
            call.close()
            with contextlib.suppress(ChildProcessError):  # those of earlier calls that have ended
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    with call:
        return _called(call)


def _called(call: socket.socket) -> list[str]:
    """The process that waits for the command, and the command."""
    asked, streams, _, _ = socket.recv_fds(call, MESSAGE_MAX, 3)
    if pid := os.fork():
        for each in streams:
            os.close(each)
        call.send(b"%d" % pid)
        ended = os.pidfd_open(pid)
        while ended not in (ready := select.select([ended, call.fileno()], [], [])[0]):
            if ready:  # a caller says nothing more: it is gone
                os.kill(pid, signal.SIGKILL)
                os._exit(0)
        call.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever pytest began with
    words, environment = json.loads(asked)
    os.environ.clear()
    os.environ.update(environment)
    return [str(word) for word in words]


def end(code: int) -> NoReturn:
    """As Python ends, apart from taking to pieces what it has loaded, which takes longer than most commands."""
    threads: Any = threading
    threads._shutdown()
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:
        code = FLUSH_FAILED
    os._exit(code)


if __name__ == "__main__":
    sys.argv[1:] = serve(*sys.argv[1:])
    from muster_server.control.cli.main import main

    end(main())
