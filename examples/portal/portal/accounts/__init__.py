"""Accounts of two kinds, their passwords, and sessions."""
