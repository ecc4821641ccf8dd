"""A Redis for any system: where it is, connections to it, and one that runs beside the nodes."""
