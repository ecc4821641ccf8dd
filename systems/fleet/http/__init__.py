"""The HTTP routes of the fleet."""
