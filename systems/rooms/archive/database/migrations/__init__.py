"""The schema steps of the archive."""
