"""Which gateway wants which room, kept in an SQL database, so that a router that starts need not wait for all gateways.

A hint and never the truth: gateways tell their rooms again anyhow, and what they tell wins by version. So nothing here is
ever waited for by a message, and a database that is away stops nothing but the warm start.
"""
