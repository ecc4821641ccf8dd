"""Performance measurements: null controls, peers side by side, reports. Nothing of Muster imports this package."""
