"""Probes on all paths: small messages through every proxy, broker and gateway, and their results (ROOM-13)."""
