"""Child processes of a bench: pinned at their start, ended by the handle that started them."""

import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import pin

_PR_SET_PDEATHSIG = 1


class ChildFailedError(Exception):
    """A child did not start; the message ends with its last output."""


class Child:
    """One process on `core`, with a private directory and a log."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        core: int,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        libc = ctypes.CDLL(None)

        def die_with_parent() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

        with pin.on(core), self.log.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=log,
                stderr=log,
                cwd=directory,
                env={**os.environ, **(environment or {})},
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until(self, ready: Callable[[], bool], *, seconds: float = 10.0) -> None:
        """Poll `ready`. Raises `ChildFailedError` when the child ended or the time is over."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self.process.poll() is not None:
                raise ChildFailedError(f"{self.name} ended with code {self.process.returncode}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise ChildFailedError(f"{self.name} was not ready after {seconds:g} s: {self.last_words()}")
            time.sleep(0.01)

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        """End it with SIGTERM, after 3 s with SIGKILL."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(3.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def python_environment() -> dict[str, str]:
    """Return the environment in which a Python child finds these packages, installed or not."""
    root = str(Path(__file__).parents[1])
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{known}" if known else root}


def private_directory(prefix: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=f"muster-{prefix}-")


def free_port() -> int:
    """Return a TCP port on 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0
