"""Redis for any program: its address, clients of it, scripts, and connections that have ended. Needs `muster[cache]`."""
