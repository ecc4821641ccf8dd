"""The control plane, which decides slowly: configuration, registry, nodes, supervisor, and the command."""
