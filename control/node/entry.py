"""Runs a node's program from its arguments: one node, several, or a template from which nodes are forked."""

import argparse
import contextlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from muster_server.control.errors import FAILURE, UserError
from muster_server.control.node import memory
from muster_server.control.node.process import Parent, run
from muster_server.control.node.shared import Shared
from muster_server.control.node.template import die_with
from muster_server.plane.kinds import kind
from muster_server.plane.spec import Spec, SpecError, content, decoded
from muster_server.plane.systems import node_command


def load(words: Sequence[str]) -> None:
    """Import what a node with these arguments needs beyond this file, and other nodes may need as well."""
    with contextlib.suppress(SpecError, ImportError):  # the node itself reports it
        file = Path(words[1 + words.index("--spec")])
        spec = decoded(file, content(file), Spec)
        if kind(spec.role).linked:
            import_module(kind(spec.role).build.partition(":")[0])
        if spec.registry is not None:
            from muster_server.control.node import enrolment

            enrolment.load(spec.registry)


def main(words: Sequence[str]) -> int:
    """Run one node under a supervisor; with `--shared` the nodes that the supervisor orders, with the spec of one of
    them.

    Exit codes: 0 ended as ordered, 1 failed, 78 must not be restarted.
    """
    parser = argparse.ArgumentParser(prog=node_command()[-1])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args(words)
    die_with(arguments.parent)
    if arguments.shared:
        memory.run(Shared().run())
        return 0
    owner = Parent(arguments.spec)
    try:
        run(owner)
    except (SpecError, OSError, UserError) as error:
        owner.tell("failed", error=str(error))
        return error.exit_code if isinstance(error, UserError) else FAILURE
    return 0
