"""The HTTP routes of likes."""
