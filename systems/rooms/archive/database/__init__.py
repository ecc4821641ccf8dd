"""The tables of the archive in SQL."""
