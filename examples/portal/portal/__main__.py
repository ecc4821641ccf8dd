"""`python -m portal`: Muster, a Redis for the cache, two web servers, a worker and sample people, until Ctrl-C.

With `--real` also MariaDB and its replica, Redis behind sentinels, and nginx on two hosts with one moving address: it needs
root. PORTAL_DATABASE, PORTAL_LEDGER and PORTAL_REPLICAS name other databases than SQLite, by URLs."""

import argparse
import asyncio
import sys
from pathlib import Path

from . import real
from .hosts import missing
from .processes import Failed, Missing
from .start import Plan, embedded, run

NEEDS = {"redis-server": "redis-server", "setpriv": "util-linux", "muster": "(pip) muster-server"}


def main() -> int:
    """Run the portal, and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m portal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", default=".portal", help="folder of the databases, the mails and the instance")
    parser.add_argument("--port", type=int, default=8000, help="of the first web server; the second one has the next")
    parser.add_argument("--mail-wait", type=int, default=600, help="seconds to read a notice before it is mailed")
    parser.add_argument("--real", action="store_true", help="as on several hosts: databases, sentinels, a front")
    said = parser.parse_args()
    folder = Path(said.folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(folder, said.port, said.mail_wait)
    try:
        if packages := missing(NEEDS):
            raise Missing(f"programs are missing; install {', '.join(packages)}")
        if said.real and not real.is_inside():
            return real.outside(plan, sys.argv[1:])
        asyncio.run(run(plan, real.ground if said.real else embedded))
    except Failed as error:
        print(f"portal: {error}", file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
