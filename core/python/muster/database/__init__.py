"""Muster with a program's own database: messages that are sent if and only if a transaction commits, effects once, reads on
replicas, and rows over shards (`docs/databases.md`).

Needs `muster[database]`, and a driver for SQLite, MariaDB, MySQL or PostgreSQL; with asyncio for async sessions.
"""

try:
    import sqlalchemy as _sqlalchemy  # noqa: F401
except ImportError as _missing:
    raise ImportError(f"{_missing.name} is missing; pip install 'muster[database]'", name=_missing.name) from _missing
