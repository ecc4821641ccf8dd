"""The archive: messages of rooms kept beyond memory, by a role that joins as a member."""
