"""The commands of delayed messages."""
