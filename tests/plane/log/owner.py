"""A process that owns a log and appends to it, for tests that kill or stop it.

Run as `python -m tests.plane.log.owner URL FOLDER EPOCH`. It appends a batch with the number of each record, and prints
`OFFSET NUMBER` of the first one once the batch is acknowledged; `fenced` at its end. Each line is flushed.
"""

import itertools
import sys
from pathlib import Path

import uvloop

from muster_server.plane.log import Batch, connect
from muster_server.plane.ownership.errors import Fenced

RECORDS = 3


async def _main(url: str, folder: Path, epoch: int) -> None:
    logs = connect(url, folder, partitions=2)
    log = await logs.open("likes", 0, epoch)
    try:
        for number in itertools.count(0, RECORDS):
            batch = Batch.of([f"{epoch}:{number + place}".encode() for place in range(RECORDS)])
            offsets = await log.append(batch)
            print(offsets.start, number, flush=True)
    except Fenced:
        print("fenced", flush=True)


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
