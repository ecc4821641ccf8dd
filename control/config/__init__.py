"""The configuration: its keys, how it is read, the nodes that it asks for, its documentation."""
