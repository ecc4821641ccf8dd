"""SQL databases for any system: URLs, errors, connections, transactions, and schemas in steps.

SQLite, MySQL or MariaDB, and PostgreSQL, behind one interface. Knows no system and no table: each system brings its
tables and steps.
"""
