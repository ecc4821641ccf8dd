"""The commands of the HTTP face."""
