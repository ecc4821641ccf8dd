"""Likes in SQL: rows of items for other programs to read, and the snapshot from which a node starts."""
