"""`python -m muster_server …`, the same as the command `muster …`."""

import sys

from muster_server.systems.start import main

if __name__ == "__main__":
    sys.exit(main())
