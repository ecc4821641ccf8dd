"""Stands in for the next release: the nodes of `muster up` that a file names speak a further version of the protocol."""
