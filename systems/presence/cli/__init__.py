"""The commands of presence."""
