"""Inboxes: a numbered list of entries per user, and broadcasts to audiences."""
