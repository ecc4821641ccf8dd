"""Muster: rooms over UDP."""

from ._core import version

__version__ = version()

__all__ = ["__version__"]
