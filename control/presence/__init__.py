"""Presence: what the control plane does for it."""
