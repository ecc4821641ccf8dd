"""The console over HTTP: the entry of all requests, its own routes, its pages."""
