from typing import TypedDict, type_check_only

import numpy as np
from numpy.typing import NDArray

from muster_server.pyext.histogram import Histogram

@type_check_only
class Total(TypedDict):
    published: int
    deliveries: int
    skipped: int
    duplicated: int
    corrupted: int
    strays: int
    refused: int
    closed: int
    blocked: int
    wall: int

class Generator:
    """One publisher and N subscribers over connected, subscribed TCP sockets, which the caller keeps open and closes.

    `publish` and `delivery` are the constant bytes before and after a payload. With `lines` a delivery may be preceded
    by lines of the server (NATS). After a run that lost something or closed a connection, make a new one.
    """

    def __init__(
        self,
        publisher: int,
        subscribers: NDArray[np.int32],
        publish: tuple[bytes, bytes],
        delivery: tuple[bytes, bytes],
        payload_bytes: int,
        *,
        lines: bool = False,
    ) -> None: ...
    def saturate(self, *, window: int, seconds: float, grace: float = 5.0) -> Total:
        """Closed loop with at most `window` publishes not yet everywhere; then waits up to `grace` for the rest.

        Deliveries are distinct and in order; lost = published * N - deliveries. `wall` is ns to the last delivery.
        """

    def pace(
        self,
        *,
        publishes_per_second: float,
        seconds: float,
        latency: Histogram,
        lateness: Histogram,
        first: Histogram,
        middle: Histogram,
        last: Histogram,
        grace: float = 5.0,
    ) -> Total:
        """Open loop on a fixed schedule. Histograms take ns from the intended moment: of every delivery, of the
        generator's own lateness, and of the first, middle and last subscriber of each publish."""
