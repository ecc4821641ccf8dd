"""The commands of likes."""
