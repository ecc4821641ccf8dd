"""Stands in for the next release in the processes of `muster up`: nodes that a file names speak a further version of the protocol."""
