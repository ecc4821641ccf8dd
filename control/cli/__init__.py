"""One file per subcommand of `muster`; each is imported only when it runs."""
