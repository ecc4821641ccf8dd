"""The HTTP face: keys, limits, errors and the page of the API, to which each system adds its routes.

Start at `server.py` (what runs), `options.py` (what can be set) and `system.py` (what a system gives).
"""
