"""A ready agent of a fleet: ping, TCP, DNS and HTTP from where it runs (`docs/fleet.md`). `python -m muster.agent` runs it.

Needs `muster[agent]`, and nothing of the servers.
"""

try:
    import cryptography as _cryptography  # noqa: F401
    import dns as _dns  # noqa: F401
    import h11 as _h11  # noqa: F401
except ImportError as _missing:
    raise ImportError(f"{_missing.name} is missing; pip install 'muster[agent]'", name=_missing.name) from _missing

from ..fleet import Failed
from .kinds import BUILT_IN, ENTRY_POINTS, Kind, named_kinds
from .options import BadOption, Options
from .reach import Address, Reach, TargetRefused
from .serving import made

__all__ = [
    "BUILT_IN",
    "ENTRY_POINTS",
    "Address",
    "BadOption",
    "Failed",
    "Kind",
    "Options",
    "Reach",
    "TargetRefused",
    "made",
    "named_kinds",
]
