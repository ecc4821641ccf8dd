"""The fleet as a system: its roles, its program, its words of the command and its routes over HTTP."""
