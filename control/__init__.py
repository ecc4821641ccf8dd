"""The control plane: configuration, registry, supervisor, command, administration."""

import sys

# structlog would format tracebacks with rich, which costs each process 0.13 s to load. Ours are plain text (`logs.py`).
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
