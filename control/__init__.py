"""What decides slowly: configuration, registry, supervisor, command, administration."""

import sys

# structlog would show tracebacks by rich, which each process would read in for 0.13 s. Ours are text (`logs.py`).
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
