"""The subcommands of the inbox."""
