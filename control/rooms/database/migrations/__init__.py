"""How a database comes to this program's schema: a step per file in `versions/`, run by `migrate.py`."""
