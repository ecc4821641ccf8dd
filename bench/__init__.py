"""How fast, measured: null controls, peers side by side, and reports. Nothing of Muster imports this package."""
