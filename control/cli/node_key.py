"""`muster cluster node-key`: the key pair by which a node proves on links which one it is."""

from pathlib import Path

from control.cluster import instance
from control.errors import ConfigError, UserError
from plane.keys import public_key
from plane.spec import SpecError


def node_key(file: Path) -> int:
    """Print the public half; make the private one unless it is there."""
    try:
        instance.make_node_key(file)
        print(public_key(str(file)))
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
    except SpecError as error:
        raise ConfigError(str(error)) from None
    return 0
