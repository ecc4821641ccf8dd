"""The command `muster` in processes that have loaded it already: most of a short command is its start.

A server, one for each module that stands for the command, loads it once and forks for every call. The process of a call has
the words, environment, folder and standard streams that the call names, and ends as the command ends. What happens while the
command is loaded is not seen here: tests of that start Python themselves.
"""

import atexit
import contextlib
import gc
import importlib
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
from typing import Final

from tests.documents import ROOT

LOADED: Final = ("control.cli", "control.console", "control.doctor", "control.rooms")
"""Packages whose modules words of the command load when they are used."""
MESSAGE_MAX: Final = 1 << 17
CALL_S: Final = 60.0
_SERVES: Final = b"serves\n"


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
        self, words: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"", seconds: float = CALL_S
    ) -> subprocess.CompletedProcess[bytes]:
        """One command to its end. Raises `subprocess.TimeoutExpired`."""
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as call,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            call.settimeout(seconds)
            call.connect(self._address)
            reading, writing = os.pipe()
            with open(writing, "wb", buffering=0) as source, contextlib.suppress(BrokenPipeError):
                asked = json.dumps([list(words), dict(environment)]).encode()
                socket.send_fds(call, [asked], [reading, out.fileno(), err.fileno()])
                os.close(reading)
                pid = int(call.recv(MESSAGE_MAX))
                left = memoryview(stdin)
                while left:  # a command need not read all of it
                    left = left[source.write(left) :]
            try:
                code = int(call.recv(MESSAGE_MAX))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(words), seconds) from None
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(list(words), code, out.read(), err.read())


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
            importlib.import_module(each.name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{name}")
        listener.listen(64)
        os.write(1, _SERVES)
        while True:
            if 0 in select.select([0, listener.fileno()], [], [])[0]:
                os._exit(0)
            call, _ = listener.accept()
            if os.fork() == 0:
                break
            call.close()
    with call:
        return _called(call)


def _called(call: socket.socket) -> list[str]:
    """The process that waits for the command, and the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked, streams, _, _ = socket.recv_fds(call, MESSAGE_MAX, 3)
    if pid := os.fork():
        for each in streams:
            os.close(each)
        call.send(b"%d" % pid)
        call.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words, environment = json.loads(asked)
    os.environ.clear()
    os.environ.update(environment)
    return [str(word) for word in words]


if __name__ == "__main__":
    sys.argv[1:] = serve(*sys.argv[1:])
    from control.cli.main import main

    sys.exit(main())
