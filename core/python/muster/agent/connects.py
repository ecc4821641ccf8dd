"""TCP connections to one address: how long each takes, and the sockets for kinds that go on with one."""

import asyncio
import contextlib
import os
import socket
import time
from typing import Any

from .reach import Address


async def connected(address: Address, port: int) -> tuple[socket.socket, float]:
    """A connected socket, and the time it took [ms]. Raises `OSError`."""
    made = socket.socket(address.socket_family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        began = time.perf_counter()
        await asyncio.get_running_loop().sock_connect(made, (address.ip, port))
        return made, (time.perf_counter() - began) * 1000
    except BaseException:
        made.close()
        raise


async def times(
    address: Address, port: int, packets: int, interval_s: float, wait_s: float, *, refusal_answers: bool
) -> tuple[list[dict[str, Any]], str]:
    """Connect and close, one after the other. For each `{"rtt": MS}`, `{"error": TEXT}` or, without an answer within
    `wait_s`, `{"x": "*"}`; and the own address, empty if none connected. `refusal_answers`: a refused connection is an
    answer of the host."""
    said: list[dict[str, Any]] = []
    source = ""
    for number in range(packets):
        if number:
            await asyncio.sleep(interval_s)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(wait_s):
                made, took = await connected(address, port)
            source = str(made.getsockname()[0])
            made.close()
            said.append({"rtt": round(took, 3)})
        except TimeoutError:
            said.append({"x": "*"})
        except ConnectionRefusedError as error:
            took = (time.perf_counter() - began) * 1000
            said.append({"rtt": round(took, 3)} if refusal_answers else {"error": reason(error)})
        except OSError as error:
            said.append({"error": reason(error)})
    return said, source


def reason(error: OSError) -> str:
    """The kernel's reason, without the address, which stands beside it."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def summary(said: list[dict[str, Any]]) -> dict[str, Any]:
    """`sent`, `rcvd`, and of the answers `min`, `avg`, `max` [ms; null without one]; `ms` is `avg`."""
    rtt = [each["rtt"] for each in said if "rtt" in each]
    average = round(sum(rtt) / len(rtt), 3) if rtt else None
    return {
        "ms": average,
        "sent": len(said),
        "rcvd": len(rtt),
        "min": min(rtt, default=None),
        "avg": average,
        "max": max(rtt, default=None),
        "result": said,
    }


def source_of(address: Address) -> str:
    """The own address towards this one, by the kernel's routes; empty without a route. Sends nothing."""
    with contextlib.suppress(OSError), socket.socket(address.socket_family, socket.SOCK_DGRAM) as probe:
        probe.connect((address.ip, 9))
        return str(probe.getsockname()[0])
    return ""
