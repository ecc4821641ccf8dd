"""The store of inboxes in SQL."""
