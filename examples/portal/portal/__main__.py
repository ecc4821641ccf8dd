"""`python -m portal`: Muster, a Redis for the cache, two web servers, a worker and sample people, until Ctrl-C."""

import argparse
import asyncio
import sys
from pathlib import Path

from .start import Failed, Plan, run


def main() -> int:
    """Run the portal, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m portal", description=__doc__)
    parser.add_argument("--folder", default=".portal", help="folder of the databases, the mails and the instance")
    parser.add_argument("--port", type=int, default=8000, help="of the first web server; the second one has the next")
    parser.add_argument("--mail-wait", type=int, default=600, help="seconds to read a notice before it is mailed")
    said = parser.parse_args()
    folder = Path(said.folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        asyncio.run(run(Plan(folder, said.port, said.mail_wait)))
    except Failed as error:
        print(f"portal: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
