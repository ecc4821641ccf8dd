"""structlog without rich, which each process would read in for 0.13 s. Tracebacks are text here (`control/node/logs.py`)."""

import sys


def lean() -> None:
    """Load structlog with rich hidden from it. An entry point calls this before it imports anything that logs."""
    if "rich" in sys.modules or "structlog" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
