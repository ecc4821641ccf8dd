"""The wall clock, as messages, rows and ids count it."""

import time


def now_ms() -> int:
    """Milliseconds since 1970, in UTC."""
    return time.time_ns() // 1_000_000
