#!/bin/sh
# Runs the SDKs' own tests of Centrifuge, unchanged but for addresses and tokens, against the hub of core/edge or a real edge.
#
#   scripts/sdks.sh FOLDER          against the hub, which has no rooms behind it
#   scripts/sdks.sh FOLDER --role   against `muster up --with edge,http,presence`; tokens are signed by its secret
#
# FOLDER has, or gets, clones of centrifuge-js, centrifuge-python and centrifuge-go. It needs git, Node.js 18 with npm,
# Go 1.25, cargo, and what scripts/setup.sh --tests installs. The clones are of the commits below and never committed.
# Ports 8000 and 8001 of loopback must be free: the tests name 8000, and the server API that they call is at 8001.
# Each SDK's output is in FOLDER/SDK.out; the end counts what passed, and names what did not.
set -u
. "$(dirname "$0")/words.sh"
role=
[ "${2:-}" != --role ] || role=yes
[ -z "$role" ] || set -- "$1"
words any "$@"
case ${1:--} in -*) echo "$0: unknown word: ${1:-no folder}; see $0 --help" >&2; exit 2 ;; esac
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
root=$PWD hub=$PWD/core/target/debug/examples/hub started=
key=test-api-key

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

serve_role() { # an edge with the server API of the HTTP face, and a key for it
    export MUSTER_CONFIG="$folder/muster.toml" MUSTER_INSTANCE__DIR="$folder/instance"
    cat >"$MUSTER_CONFIG" <<-END
	[database]
	url = "none"
	[probes]
	every_ms = 0
	[edge]
	bind = "127.0.0.1:8000"
	anonymous_rights = "read,publish,command,members,history"
	[http]
	bind = "127.0.0.1:8001"
	[namespaces.smallhistory]
	history_messages = 256
	END
    .venv/bin/muster up --with edge,http,presence >"$folder/role.out" 2>&1 &
    started=$!
    until .venv/bin/muster status >/dev/null 2>&1; do
        kill -0 "$started" 2>/dev/null || { cat "$folder/role.out" >&2; exit 1; }
        sleep 1
    done
    key=$(.venv/bin/muster key create "sdks-$$" --scope 'publish:*' --scope 'read:*')
}

stop() {
    # shellcheck disable=SC2086
    [ -z "$started" ] || kill $started 2>/dev/null
    wait
    started=
}
trap stop EXIT INT TERM

if [ -z "$role" ]; then
    cargo build --locked --quiet --manifest-path core/Cargo.toml -p muster-edge --example hub || exit 1
fi
clone centrifuge-js c9e867858f703ef7e0b4c68e77004b36b3490214
clone centrifuge-python 1315468ebec743e3bd65b4294fda5f9de8c2ddd0
clone centrifuge-go f94d5b377050a00a458ba78d3509dbd85ade035b
if [ -n "$role" ]; then
    serve_role
    PYTHONPATH=$root/.tools/sdks/python .venv/bin/python tests/edge/programs/python/sign_again.py "$folder/instance/jwt.secret" \
        "$folder"/centrifuge-js/src/*.test.ts "$folder"/centrifuge-python/tests/*.py
fi

[ -n "$role" ] || serve --no-presence --unknown test
(cd "$folder/centrifuge-go" && go test -v ./...) >"$folder/go.out" 2>&1
[ -n "$role" ] || stop

[ -n "$role" ] || serve --joins --personal
(cd "$folder/centrifuge-python" && PYTHONPATH=$folder/centrifuge-python:$root/.tools/sdks/python \
    "$root/.venv/bin/python" "$root/tests/edge/programs/python/own_tests.py" tests) >"$folder/python.out" 2>&1
[ -n "$role" ] || stop

[ -n "$role" ] || serve
(
    cd "$folder/centrifuge-js" || exit 1
    [ -d node_modules ] || npm install --silent --ignore-scripts --legacy-peer-deps >/dev/null
    sed -i "s#http://localhost:8000/api#http://127.0.0.1:8001/api#; s#ws://localhost:8000#ws://127.0.0.1:8000#; s#test-api-key#$key#" src/*.test.ts
    npx jest --forceExit --runInBand --verbose -t '^(?!.*(http_stream|sse|map)).*$' src/centrifuge.test.ts \
        src/centrifuge.protobuf.test.ts src/recovery.test.ts src/getstate.test.ts src/compaction.test.ts src/utils.test.ts \
        src/delta.test.ts
) >"$folder/js.out" 2>&1
stop

for sdk in go python js; do
    echo "== $sdk"
    [ "$sdk" != go ] || echo "$(grep -c '^--- PASS' "$folder/go.out") of $(grep -cE '^--- (PASS|FAIL|SKIP)' "$folder/go.out")"
    grep -E '^--- (FAIL|SKIP)|^(FAIL|ERROR): |✕|^Tests:|^Ran |^(OK|FAILED)( |$)|^(ok|FAIL)	' "$folder/$sdk.out"
done
