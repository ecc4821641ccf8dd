"""Loops of benches that measure machines without servers: `core/py/bench`, compiled when the first of them is used."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import kernels

if TYPE_CHECKING:
    from bench.loops._loops import FeedEngine, KnownRooms, ScaleEngine, wheel_times

__all__ = ["FeedEngine", "KnownRooms", "ScaleEngine", "wheel_times"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kernels.build_crate(Path(__file__).parent, "muster-py-bench")
    return getattr(import_module("bench.loops._loops"), name)
