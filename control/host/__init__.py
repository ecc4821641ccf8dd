"""The operating system: files, sockets, ports, limits of open files, systemd's socket, SIGHUP."""
