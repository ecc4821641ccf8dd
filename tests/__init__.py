"""The suite. A package, so that no installed distribution can take its name."""
