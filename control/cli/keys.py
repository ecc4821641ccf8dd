"""`muster cluster node-key` and `signing-key`: key pairs, of which the private half is a file and the public one a line."""

from collections.abc import Callable
from pathlib import Path

from control.cluster import instance
from control.errors import ConfigError, UserError
from plane.certificate import public_half
from plane.keys import KEY_BYTES, public_key
from plane.spec import SpecError, secret


def node_key(file: Path) -> int:
    """Print the public half of the key that proves a node's identity on links."""
    return _printed(file, public_key)


def signing_key(file: Path) -> int:
    """Print the public half of the key that certifies servers."""
    return _printed(file, lambda name: public_half(secret(name, KEY_BYTES)))


def _printed(file: Path, public: Callable[[str], str]) -> int:
    """Makes the private half if it is missing."""
    try:
        instance.make_key(file)
        print(public(str(file)))
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
    except SpecError as error:
        raise ConfigError(str(error)) from None
    return 0
