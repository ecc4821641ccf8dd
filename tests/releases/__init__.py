"""Releases before this one, as the other end sees them: what they send stays as it was."""
