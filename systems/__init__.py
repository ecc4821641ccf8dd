"""The systems of Muster: one package each."""
