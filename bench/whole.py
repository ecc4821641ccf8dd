"""A whole instance with its systems, as `muster up` runs it: for benches of several processes, on all cores.

Owns its start and its end. It must not know what is measured.
"""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from bench.child import ChildFailedError, python_environment
from muster_server.control.cluster import instance as folders
from muster_server.control.cluster.instance import Folder
from muster_server.control.errors import UserError

START_S: Final = 60.0
LOOK_S: Final = 0.2


@contextlib.contextmanager
def running(place: Path, systems: str, settings: Mapping[str, str] = {}) -> Iterator[Folder]:
    """`muster up --with` these, and these variables, until the end of the context. Raises `ChildFailedError`."""
    folder = Folder(place / "i")
    environment = {name: value for name, value in python_environment().items() if not name.startswith("MUSTER_")}
    environment |= {"MUSTER_INSTANCE__DIR": str(folder.path), "MUSTER_LOG__LEVEL": "warning"}
    environment |= {"MUSTER_PROBES__EVERY_MS": "0", "MUSTER_DATABASE__URL": "none", **settings}
    command = [sys.executable, "-m", "muster_server", "up", "--with", systems]
    with (place / "log").open("wb") as log:
        up = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not ready(folder):
            if up.poll() is not None or time.monotonic() > deadline:
                lines = (place / "log").read_text(errors="replace").strip().splitlines()
                raise ChildFailedError(f"muster up did not start: {lines[-1] if lines else 'it said nothing'}")
            time.sleep(LOOK_S)
        yield folder
    finally:
        up.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            up.wait(30)
        up.kill()
        up.wait()


def ready(folder: Folder) -> bool:
    """Whether all nodes serve."""
    try:
        return all(process.ready for process in folders.find(folder).processes)
    except UserError:
        return False
