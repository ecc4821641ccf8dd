"""The memory of a gateway's access point: `python -m bench.presence_held USERS` prints the bytes that so many users with one
device take, in a process of its own.
"""

import gc
import os
import sys
from pathlib import Path
from typing import Final

from muster_server import _engines

WINDOW_US: Final = 1_000_000
PACKET: Final = 38
"""Users of one packet."""


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def held(users: int) -> int:
    """The growth by so many users; the ring of packets is full, or has all of them."""
    gateway = _engines.PresenceAccess(b"{}", ap=1, epoch=1, now=0)
    gc.collect()
    before, now = resident(), 0
    for user in range(users):
        gateway.online(now, 1, user, "phone", user)
        if user % PACKET == PACKET - 1:
            now += WINDOW_US
            gateway.expire(now)
            gateway.take()
    return resident() - before


if __name__ == "__main__":
    print(held(int(sys.argv[1])))
