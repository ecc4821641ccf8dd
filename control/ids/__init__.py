"""Ids that are unique among processes: dense ones, from segments, and snowflakes, from leased workers."""

from muster_server.control.ids.dense import DenseIds, RegistrySegments, Segments
from muster_server.control.ids.snowflake import Parts, Snowflakes, parts

__all__ = ["DenseIds", "Parts", "RegistrySegments", "Segments", "Snowflakes", "parts"]
