"""A cache of two levels that is never stale after a drop: in the process, and in a Redis (`docs/cache.md`).

Needs `muster[cache]`. Of the client of rooms it uses what `rooms=` is given alone.
"""

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
