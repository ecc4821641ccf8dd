"""The steps to this program's schema: one file each in `versions/`, run by `migrate.py`."""
