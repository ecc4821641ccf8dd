"""The hub in memory of `core/edge`: the client protocol without rooms, rights and durability.

`MUSTERTEST_HUB` names the program where it is built already.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CORE: Final = Path(__file__).parents[2] / "core"
BUILD: Final = ("cargo", "build", "--locked", "--quiet", "--manifest-path", str(CORE / "Cargo.toml"))


@contextmanager
def hub(*options: str) -> Iterator[str]:
    """The URL of a hub on a free port. Any token is a user's name there but `wrong` and `expired`."""
    program = os.environ.get("MUSTERTEST_HUB", "")
    if not program:
        subprocess.run([*BUILD, "-p", "muster-edge", "--example", "hub"], check=True)
        program = str(CORE / "target" / "debug" / "examples" / "hub")
    with subprocess.Popen([program, "127.0.0.1:0", *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
