"""The control plane: what decides slowly. Configuration, registry, nodes, supervisor, the command."""
