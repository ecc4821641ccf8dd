"""What decides slowly: configuration, registry, supervisor, command, administration."""
