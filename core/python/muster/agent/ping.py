"""The kind `ping`: ICMP echoes, or TCP connections where the kernel gives no socket for them. The kind `tcp`: a port.

Fields as those of RIPE Atlas's ping, with the same meaning; `ms` is our own.
"""

from typing import Any, Final

from ..fleet import Failed
from . import echoes
from .connects import source_of, summary, times
from .options import BadOption, Options
from .reach import Reach

PACKETS_MAX: Final = 16
SIZE_MAX: Final = 1_400


async def ping(target: str, options: dict[str, Any], reach: Reach) -> dict[str, Any]:
    """Measure a host. Options: `packets`, `size`, `interval_ms`, `wait_ms`, `af`, and `port` for TCP. Raises `Failed`
    if nothing came back."""
    given = Options(options)
    packets, interval_s, wait_s, family = _common(given)
    size = given.whole("size", 48, echoes.TOKEN_BYTES, SIZE_MAX)
    port = given.whole("port", 443, 1, 65_535)
    given.end()
    address = await reach.address(target, family)
    said: dict[str, Any] = {"dst_name": address.host, "dst_addr": address.ip, "af": address.family}
    made = echoes.opened(address)
    if made is None:
        results, source = await times(address, port, packets, interval_s, wait_s, refusal_answers=True)
        said |= {"src_addr": source or source_of(address), "proto": "TCP", "dst_port": port} | summary(results)
    else:
        with made:
            source = str(made.getsockname()[0])
            sent = echoes.Echoes(made, address.family, size)
            results = await sent.run(packets, interval_s, wait_s)
        said |= {"src_addr": source, "proto": "ICMP", "size": size, "ttl": sent.ttl, "dup": sent.duplicates}
        said |= summary(results)
    return _judged(said)


async def tcp(target: str, options: dict[str, Any], reach: Reach) -> dict[str, Any]:
    """Connect to a port, `HOST:PORT`. Options: `packets` (connections), `interval_ms`, `wait_ms`, `af`. Raises `Failed`
    if none succeeds."""
    given = Options(options)
    packets, interval_s, wait_s, family = _common(given)
    given.end()
    host, port = host_and_port(target)
    address = await reach.address(host, family)
    results, source = await times(address, port, packets, interval_s, wait_s, refusal_answers=False)
    said = {"dst_name": address.host, "dst_addr": address.ip, "dst_port": port, "af": address.family, "proto": "TCP"}
    return _judged(said | {"src_addr": source or source_of(address)} | summary(results))


def host_and_port(target: str) -> tuple[str, int]:
    """Parse `HOST:PORT` or `[IPv6]:PORT`. Raises `BadOption`."""
    host, colon, port = target.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (colon and host and port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65_536):
        raise BadOption(f"invalid target {target!r:.80} (expected HOST:PORT or [IPv6]:PORT)")
    return host, int(port)


def _common(given: Options) -> tuple[int, float, float, int]:
    packets = given.whole("packets", 3, 1, PACKETS_MAX)
    interval_ms = given.whole("interval_ms", 200, 10, 1_000)
    wait_ms = given.whole("wait_ms", 1_000, 10, 5_000)
    return packets, interval_ms / 1000, wait_ms / 1000, given.family()


def _judged(said: dict[str, Any]) -> dict[str, Any]:
    if said["rcvd"]:
        return said
    why = next((each["error"] for each in said["result"] if "error" in each), "no answer")
    raise Failed(f"{why}: 0 of {said['sent']} answered", said)
