"""A cache of two levels, in the process and in a Redis, that is never stale after a drop (`docs/cache.md`).

Needs `muster[cache]`. It uses the client of rooms only where the program passes `rooms=`.
"""

try:
    import hiredis as _hiredis  # noqa: F401
    import moka_py as _moka_py  # noqa: F401
    import redis as _redis  # noqa: F401
except ImportError as _missing:
    raise ImportError(f"{_missing.name} is missing; pip install 'muster[cache]'", name=_missing.name) from _missing

from ..errors import Unavailable
from .cache import Cache
from .changing import Changing, MarkLapsed
from .functions import Cached
from .reading import PRIMARY


class _Where:
    """What the function that loads a value can ask about its call."""

    @property
    def primary(self) -> bool:
        """True: this load must read the primary database, because a replica may lag behind a drop."""
        return PRIMARY.get()


where = _Where()

__all__ = ["Cache", "Cached", "Changing", "MarkLapsed", "Unavailable", "where"]
