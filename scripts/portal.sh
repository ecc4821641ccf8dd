#!/bin/sh
# Builds what the example needs, then runs the portal of examples/portal: Muster, two web servers, a worker, sample people.
#
#   scripts/portal.sh            or `make portal`
#   scripts/portal.sh WORDS…     further words of `python -m portal`, for example --port 9000
set -eu
. "$(dirname "$0")/words.sh"
words any "$@"
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"
command -v redis-server >/dev/null 2>&1 || {
    echo 'portal: redis-server is missing: apt-get install --no-install-recommends redis-server' >&2
    exit 69
}
scripts/setup.sh
PYTHONPATH=examples/portal${PYTHONPATH:+:$PYTHONPATH} exec .venv/bin/python -m portal "$@"
