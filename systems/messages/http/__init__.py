"""The HTTP routes of delayed messages."""
