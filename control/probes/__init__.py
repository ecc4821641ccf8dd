"""Probes on all hash paths: small messages by every proxy, broker and gateway, and what becomes of them (ROOM-13)."""
