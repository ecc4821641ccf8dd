"""Redis for any program: its address, clients of it, and connections that have ended. Needs `muster[cache]`."""
