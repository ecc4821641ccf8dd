"""Likes in SQL: rows of items for other programs, and the snapshot from which a node starts."""
