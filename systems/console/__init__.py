"""The web console: pages on which an operator sees all systems and acts on them.

Start at `http/entry.py` (sessions, rights, audit) and `sampler.py` (what the pages show of the nodes).
"""
