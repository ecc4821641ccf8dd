"""structlog without rich, which would cost each process 0.13 s to import. Tracebacks are text here
(`control/node/logs.py`)."""

import sys


def lean() -> None:
    """Import structlog with rich hidden from it. An entry point calls this before it imports a module that logs."""
    if "rich" in sys.modules or "structlog" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
