"""The HTTP routes of rooms."""
