"""The server API of Centrifugo over HTTP, as far as rooms can answer it: `POST /api/METHOD`."""
