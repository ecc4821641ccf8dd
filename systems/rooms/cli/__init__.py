"""The commands of rooms."""
