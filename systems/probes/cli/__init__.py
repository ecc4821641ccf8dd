"""The commands of probes."""
