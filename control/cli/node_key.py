"""`muster cluster node-key`: the key pair that proves a node's identity on links."""

from pathlib import Path

from control.cluster import instance
from control.errors import ConfigError, UserError
from plane.keys import public_key
from plane.spec import SpecError


def node_key(file: Path) -> int:
    """Print the public half. Makes the private one if it is missing."""
    try:
        instance.make_node_key(file)
        print(public_key(str(file)))
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
    except SpecError as error:
        raise ConfigError(str(error)) from None
    return 0
