#!/bin/sh
# Builds what the example needs, then runs the portal of examples/portal: Muster, two web servers, a worker, sample people.
#
#   scripts/portal.sh            or `make portal`
#   scripts/portal.sh --real     or `make portal-real`: MariaDB, Redis behind sentinels, nginx on two hosts; as root
#   scripts/portal.sh WORDS…     further words of `python -m portal`, for example --port 9000
set -eu
. "$(dirname "$0")/words.sh"
words any "$@"
cd "$(dirname "$0")/.."
scripts/setup.sh
PYTHONPATH=examples/portal${PYTHONPATH:+:$PYTHONPATH} exec .venv/bin/python -m portal "$@"
