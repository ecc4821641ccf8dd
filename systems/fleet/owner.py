"""The owner of a name among several nodes.

Needs no library of the fleet: processes that only ask index nodes import it too.
"""

from hashlib import blake2b


def chosen(name: str, nodes: tuple[int, ...]) -> int:
    """One of the nodes for a name, by rendezvous hashing: after a loss only the lost node's names move."""
    return max(nodes, key=lambda node: blake2b(f"{node}/{name}".encode(), digest_size=8).digest())
