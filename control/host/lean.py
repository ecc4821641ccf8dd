"""structlog without rich, which would cost each process 0.13 s to import. Tracebacks are text here
(`control/node/logs.py`)."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

STRUCTLOG, RICH = "structlog", "rich"


def lean() -> None:
    """Hide rich from structlog once that is loaded. An entry point calls this before it imports anything that logs."""
    if STRUCTLOG not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds structlog, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if name != STRUCTLOG:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Loads structlog while rich cannot be imported."""

    def exec_module(self, module: ModuleType) -> None:
        hidden = sys.modules.get(RICH)
        sys.modules[RICH] = None  # type: ignore[assignment]
        try:
            super().exec_module(module)
        finally:
            if hidden is None:
                del sys.modules[RICH]
            else:
                sys.modules[RICH] = hidden
