"""The words of the command `muster` for the edge."""
