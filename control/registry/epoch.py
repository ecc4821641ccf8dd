"""The epoch of a node: strictly greater at each start (I-1), whatever the clock or the disk did.

`max(persisted + 1, unix seconds)`: with a lost disk the clock carries on, with a clock set back the disk does.
"""

import time
from pathlib import Path
from typing import Final

from muster_server.control.errors import UserError
from muster_server.plane.files import write_atomically

EPOCH_MAX: Final = (1 << 32) - 1
"""It travels as u32; unix seconds reach that in 2106."""


def next_epoch(folder: Path, node: int, now: float | None = None) -> int:
    """Take the epoch for a start of `node` and persist it before anybody sees it. Raises `UserError`."""
    file = folder / f"node-{node}"
    try:
        last = int(file.read_text(encoding="ascii"))
    except FileNotFoundError:
        last = 0
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot read the last epoch of node {node}: {error}") from None
    epoch = max(last + 1, int(time.time() if now is None else now))
    if epoch > EPOCH_MAX:
        raise UserError(f"{file}: the epochs of node {node} are used up")
    write_atomically(file, f"{epoch}\n".encode())
    return epoch
