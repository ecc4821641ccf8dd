"""Muster with a program's own database: messages that are sent if and only if a transaction commits, and effects once.

Needs SQLAlchemy 2.1, and a driver for SQLite, MariaDB, MySQL or PostgreSQL; with asyncio for async sessions.
"""
