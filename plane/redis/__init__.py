"""A Redis that runs beside the nodes, for any system."""
