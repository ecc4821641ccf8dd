"""One file per subcommand of `muster`, imported only when it runs."""
