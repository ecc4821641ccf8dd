"""Reduces an OpenAPI to what generated clients can do: from standard input to standard output.

Left out are bodies that are not JSON where the route takes JSON too, because generators cannot tell them apart by their
type, and event streams, because a generated function waits for the end of its answer.
"""

import json
import sys
from typing import Any

JSON = "application/json"
EVENTS = "text/event-stream"


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """The same document with fewer bodies and routes."""
    for item in document["paths"].values():
        for method, operation in list(item.items()):
            content = operation.get("responses", {}).get("200", {}).get("content", {})
            if content.keys() == {EVENTS}:
                del item[method]
                continue
            content.pop(EVENTS, None)
            bodies = operation.get("requestBody", {}).get("content", {})
            if JSON in bodies:
                operation["requestBody"]["content"] = {JSON: bodies[JSON]}
    return document


if __name__ == "__main__":
    json.dump(plain(json.load(sys.stdin)), sys.stdout)
