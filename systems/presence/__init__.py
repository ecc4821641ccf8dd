"""Presence: which device of which user is online at which gateway, and messages to one user."""
