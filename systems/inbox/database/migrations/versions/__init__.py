"""The schema steps of the inbox, in order."""
