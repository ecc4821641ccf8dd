"""The epoch of a node: strictly greater at each start (I-1), whatever happened to the clock or the disk.

`max(persisted + 1, unix seconds)`: after the loss of the disk the clock continues the sequence, after a clock was set
back the disk does.
"""

import datetime
import time
from pathlib import Path
from typing import Final

from muster_server.control.errors import UserError
from muster_server.plane.files import write_atomically

EPOCH_MAX: Final = (1 << 32) - 1
"""The wire has a u32; unix seconds exceed it in 2106."""
CLOCK_MAX: Final = EPOCH_MAX - (1 << 28)
"""A clock later than this, in 2097, is taken as wrong: a start by it would leave the node few epochs, or none."""


def later(of: str, *epochs: int, now: float) -> int:
    """An epoch greater than these. Raises `UserError` for a clock that is far ahead, and if no epoch is left."""
    if now > CLOCK_MAX:
        day = datetime.datetime.fromtimestamp(now, datetime.UTC).date()
        raise UserError(f"the clock of this machine says {day}: correct it, and start again")
    epoch = max(int(now), *(each + 1 for each in epochs))
    if epoch > EPOCH_MAX:
        raise UserError(f"no epochs of {of} are left")
    return epoch


def next_epoch(folder: Path, node: int, now: float | None = None) -> int:
    """Take the epoch for a start of `node` and persist it before any other process sees it. Raises `UserError`."""
    file = folder / f"node-{node}"
    try:
        last = int(file.read_text(encoding="ascii"))
    except FileNotFoundError:
        last = 0
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot read the last epoch of node {node}: {error}") from None
    epoch = later(f"node {node}", last, now=time.time() if now is None else now)
    write_atomically(file, f"{epoch}\n".encode())
    return epoch
