"""The HTTP face: keys, limits, errors and the page of the API, to which each system adds its routes.

Start at `server.py` (the server), `options.py` (its configuration) and `face.py` (the part of a system).
"""
