"""The configuration: its keys, how it is read, the nodes it asks for, its documentation."""
