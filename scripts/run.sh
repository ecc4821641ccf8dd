#!/bin/sh
# Builds what the demo needs, then runs every system that this machine has the programs for, with a demo of each.
#
#   scripts/run.sh            or `make run`
#   scripts/run.sh WORDS…     further words of `muster up`, for example --for 20
set -eu
. "$(dirname "$0")/words.sh"
words any "$@"
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"
scripts/setup.sh --demo

with=edge,http,inbox,likes,messages
missing=
add() { # SYSTEM PROGRAM…
    system=$1
    shift
    for program; do
        command -v "$program" >/dev/null 2>&1 && continue
        missing="$missing $system"
        return
    done
    with=$with,$system
}
add presence redis-server
add fleet redis-server mosquitto
[ -z "$missing" ] ||
    echo "run: without$missing; to run all: apt-get install --no-install-recommends redis-server mosquitto" >&2
exec .venv/bin/muster up --demo --tour --with "$with" "$@"
