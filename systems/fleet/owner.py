"""Which of several nodes a name belongs to.

Needs no library of the fleet's: whoever asks index nodes has it, also where none can be served.
"""

from hashlib import blake2b


def chosen(name: str, nodes: tuple[int, ...]) -> int:
    """One of the nodes for a name, by rendezvous: another node takes over only what a lost one had."""
    return max(nodes, key=lambda node: blake2b(f"{node}/{name}".encode(), digest_size=8).digest())
