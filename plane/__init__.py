"""What all server processes are made of. Knows no system, no configuration and no registry.

`spec` is the file that a process starts from; `kind` describes a role; `server` runs a machine's engine on uvloop;
`service` is the interface of faces and workers; `calls` carries requests between processes; `auth`, `trust` and `users`
judge credentials; `database`, `redis` and `log` are the stores."""
