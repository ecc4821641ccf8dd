"""The schema steps of the inbox."""
