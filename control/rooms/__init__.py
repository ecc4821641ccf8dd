"""The room plane's commands, demo, and database of memberships."""
