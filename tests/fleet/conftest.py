"""Fixtures that several files of the fleet use."""

from tests.fleet.test_broker import broker, plane
from tests.fleet.test_scheduler import house

__all__ = ["broker", "house", "plane"]
