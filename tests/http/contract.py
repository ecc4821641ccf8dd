"""The part of an OpenAPI that clients of a release rely on: operations, parameters, and the fields of answers.

At a release: `scripts/clients/openapi.py | python tests/http/contract.py > tests/http/releases/VERSION.json`.
"""

import json
import sys
from typing import Any

Contract = dict[str, dict[str, Any]]


def contract(document: dict[str, Any]) -> Contract:
    """For each operation its parameters, those that it needs, and the fields of its answers; `array` for an array."""
    return {
        f"{method.upper()} {path}": {
            "parameters": sorted(each["name"] for each in operation.get("parameters", [])),
            "needs": sorted(each["name"] for each in operation.get("parameters", []) if each.get("required")),
            "answers": {
                status: _fields(document, response)
                for status, response in sorted(operation["responses"].items())
                if status.startswith("2")
            },
        }
        for path, item in sorted(document["paths"].items())
        for method, operation in sorted(item.items())
    }


def changes(before: Contract, now: Contract) -> dict[str, list[str]]:
    """What a client of `before` misses, by operation."""
    found: dict[str, list[str]] = {}
    for name, old in before.items():
        new = now.get(name)
        if new is None:
            found[name] = ["the route is gone"]
            continue
        gone = [f"parameter {each} is gone" for each in old["parameters"] if each not in new["parameters"]]
        gone += [f"parameter {each} is needed" for each in new["needs"] if each not in old["needs"]]
        for status, fields in old["answers"].items():
            told = new["answers"].get(status)
            if told is None:
                gone.append(f"the answer {status} is gone")
            elif "array" in (fields, told):
                gone += [f"the answer {status} was {fields}, and is {told}"] if fields != told else []
            else:
                gone += [f"field {each} of {status} is gone" for each in fields if each not in told]
        if gone:
            found[name] = gone
    return found


def additions(before: Contract, now: Contract) -> dict[str, tuple[set[str], set[str]]]:
    """New parameters and answer fields under `/api/v1/` since `before`, by operation, without those of new routes."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for name, new in now.items():
        if not name.partition(" ")[2].startswith("/api/v1/"):
            continue
        if (old := before.get(name)) is None:
            found[name] = set(), set()
            continue
        parameters = set(new["parameters"]) - set(old["parameters"])
        fields: set[str] = set()
        for status, each in new["answers"].items():
            was = old["answers"].get(status, [])
            if "array" not in (each, was):
                fields |= set(each) - set(was)
        if parameters or fields:
            found[name] = parameters, fields
    return found


def _fields(document: dict[str, Any], response: dict[str, Any]) -> Any:
    shape = response.get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in shape:
        shape = document["components"]["schemas"][shape["$ref"].rpartition("/")[2]]
    return "array" if shape.get("type") == "array" else sorted(shape.get("properties", {}))


if __name__ == "__main__":
    json.dump(contract(json.load(sys.stdin)), sys.stdout, indent=1)
    print()
