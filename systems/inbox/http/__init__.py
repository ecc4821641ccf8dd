"""The HTTP routes of the inbox."""
