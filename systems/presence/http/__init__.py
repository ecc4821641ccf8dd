"""The HTTP routes of presence."""
