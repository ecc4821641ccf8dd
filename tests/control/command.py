"""The command `muster` with fake roles, in an instance folder of its own.

A call forks a process that has loaded the command already; `COMMAND` is the whole start, for tests of that and of signals.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests import forked
from tests.documents import ROOT
from tests.heard import Heard
from tests.waiting import PATIENT_S

FAKE: Final = "tests.fakes.command"
COMMAND: Final = (sys.executable, "-m", FAKE)


Running = subprocess.Popen[str] | forked.Process


class Command:
    """Runs `muster` against an instance folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        self.environment |= {"MUSTER_INSTANCE__DIR": str(folder), "NO_COLOR": "1", "COLUMNS": "200"}
        # A database's library, and a prober, each add a second to a start.
        self.environment |= {"MUSTER_DATABASE__URL": "none", "MUSTER_PROBES__EVERY_MS": "0"}

    def __call__(self, *words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        done = forked.server(FAKE).run(words, self.environment | environment, stdin.encode())
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *words: str, **streams: Any) -> forked.Process:
        return forked.server(FAKE).start(words, self.environment, text=True, **streams)

    @contextmanager
    def up(self, *words: str, anew: bool = False, **options: Any) -> Iterator[Running]:
        """`anew`: from the start of Python, with further options of `subprocess.Popen`. `heard` is its stderr."""
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        begun: Running
        if anew:
            begun = subprocess.Popen(
                [*COMMAND, "up", *words], cwd=ROOT, env=self.environment, text=True, **streams, **options
            )
        else:
            begun = self.start("up", *words, **streams)
        with begun as process:
            assert process.stderr is not None
            self.heard = heard = Heard(process.stderr)
            try:
                heard.next(lambda line: "Ctrl-C" in line)
                yield process
            finally:
                process.terminate()
                process.wait(PATIENT_S)
                heard.rest()
