"""Redis for any program: where one is, clients of it, and connections that have ended. Needs `muster[cache]`."""
