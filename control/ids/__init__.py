"""Ids that no two processes give: dense ones, from segments, and snowflakes, from leased workers."""

from control.ids.dense import DenseIds, RegistrySegments, Segments
from control.ids.snowflake import Parts, Snowflakes, parts

__all__ = ["DenseIds", "Parts", "RegistrySegments", "Segments", "Snowflakes", "parts"]
