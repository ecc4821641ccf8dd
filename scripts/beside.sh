#!/bin/sh
# Runs the commands of its input, one a line, as many at once as there are processors.
#
# It prints each command's output below its name once it has ended, and names the failed ones. Exit code: 0 if all ended
# with 0, else 1.
set -u
. "$(dirname "$0")/words.sh"
words none "$@"
cd "$(dirname "$0")/.."
tr '\n' '\0' | xargs -0 -n 1 -P "$(getconf _NPROCESSORS_ONLN)" sh -c '
    code=0
    said=$(eval "$1" 2>&1) || code=$?
    [ -z "$said" ] || said="$said
"
    [ "$code" = 0 ] || said="${said}failed with $code: $1
"
    printf "== %s\n%s" "$1" "$said" >&2
    [ "$code" = 0 ]' beside || exit 1
