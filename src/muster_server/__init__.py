"""The server of Muster. Its folders stand at the top of the tree."""
