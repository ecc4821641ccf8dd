"""A cache of two levels that is never stale after a drop: in the process, and in a Redis (`docs/cache.md`).

Needs `muster[cache]`. Of the client of rooms it uses what `rooms=` is given alone.
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
    """What a load is told."""

    @property
    def primary(self) -> bool:
        """The load that runs now must read the primary database: a replica may lag behind a drop."""
        return PRIMARY.get()


where = _Where()

__all__ = ["Cache", "Cached", "Changing", "MarkLapsed", "Unavailable", "where"]
