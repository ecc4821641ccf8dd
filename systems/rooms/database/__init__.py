"""Which gateway wants which room, in an SQL database, so that a starting router need not wait for all gateways.

A hint, never the truth: gateways report their rooms again anyway, and their reports win by version. So no message ever
waits for it, and without the database only the warm start is missing.
"""
