#!/bin/sh
# Runs the SDKs' own tests of Centrifuge, unchanged but for addresses, against the hub of core/edge.
#
#   scripts/sdks.sh FOLDER      FOLDER has, or gets, clones of centrifuge-js, centrifuge-python and centrifuge-go
#
# It needs git, Node.js 18 with npm, Go 1.25, cargo, and what scripts/setup.sh --tests installs. The clones are of
# the commits below and never committed. Ports 8000 and 8001 of loopback must be free: the tests name 8000, and the
# script serves the few routes of the server API that they call at 8001. Each SDK's output is in FOLDER/SDK.out.
set -u
. "$(dirname "$0")/words.sh"
words any "$@"
case ${1:--} in -*) echo "$0: unknown word: ${1:-no folder}; see $0 --help" >&2; exit 2 ;; esac
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
root=$PWD hub=$PWD/core/target/debug/examples/hub started=

clone() {
    [ -d "$folder/$1" ] || git clone --quiet "https://github.com/centrifugal/$1" "$folder/$1" || exit 69
    git -C "$folder/$1" checkout --quiet --force "$2" || exit 69
}

serve() { # a hub with these options, and the server API in front of it
    "$hub" 127.0.0.1:8000 "$@" >/dev/null &
    started=$!
    PYTHONPATH=$root/.tools/sdks/python .venv/bin/python tests/edge/programs/python/server_api.py ws://127.0.0.1:8000/connection/websocket 8001 &
    started="$started $!"
    sleep 1
}

stop() {
    # shellcheck disable=SC2086
    [ -z "$started" ] || kill $started 2>/dev/null
    wait
    started=
}
trap stop EXIT INT TERM

cargo build --locked --quiet --manifest-path core/Cargo.toml -p muster-edge --example hub || exit 1
clone centrifuge-js c9e867858f703ef7e0b4c68e77004b36b3490214
clone centrifuge-python 1315468ebec743e3bd65b4294fda5f9de8c2ddd0
clone centrifuge-go f94d5b377050a00a458ba78d3509dbd85ade035b

serve --no-presence --unknown test
(cd "$folder/centrifuge-go" && go test -v ./...) >"$folder/go.out" 2>&1
stop

serve --joins --personal
(cd "$folder/centrifuge-python" && PYTHONPATH=$folder/centrifuge-python:$root/.tools/sdks/python \
    "$root/.venv/bin/python" -m unittest discover -v tests) >"$folder/python.out" 2>&1
stop

serve
cd "$folder/centrifuge-js" || exit 1
[ -d node_modules ] || npm install --silent --ignore-scripts >/dev/null
sed -i 's#http://localhost:8000/api#http://127.0.0.1:8001/api#; s#ws://localhost:8000#ws://127.0.0.1:8000#' src/*.test.ts
npx jest --forceExit --runInBand --verbose -t '^(?!.*(http_stream|sse|map)).*$' src/centrifuge.test.ts \
    src/centrifuge.protobuf.test.ts src/recovery.test.ts src/getstate.test.ts src/compaction.test.ts src/utils.test.ts \
    src/delta.test.ts >"$folder/js.out" 2>&1
stop

for sdk in go python js; do
    echo "== $sdk"
    grep -E '^--- (FAIL|SKIP)|^(FAIL|ERROR): |✕|^Tests:|^Ran |^(ok|FAIL)	' "$folder/$sdk.out"
done
