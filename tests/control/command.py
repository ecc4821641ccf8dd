"""The command `muster` with fake roles, in an instance folder of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.documents import ROOT

COMMAND: Final = (sys.executable, "-m", "tests.fakes.command")


class Command:
    """Runs `muster` against an instance folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        self.environment |= {"MUSTER_INSTANCE__DIR": str(folder), "NO_COLOR": "1", "COLUMNS": "200"}
        # The library of a database, and a prober, are a second of each start.
        self.environment |= {"MUSTER_DATABASE__URL": "none", "MUSTER_PROBES__EVERY_MS": "0"}

    def __call__(self, *words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *words],
            cwd=ROOT,
            env=self.environment | environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextmanager
    def up(self, *words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [*COMMAND, "up", *words],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if "Ctrl-C" in line:
                    break
            try:
                yield process
            finally:
                process.terminate()
                process.communicate(timeout=20)
