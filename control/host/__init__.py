"""What the operating system gives: files, sockets, ports, limits of open files, systemd's socket, the end of a pipe."""
