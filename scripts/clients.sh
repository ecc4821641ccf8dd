#!/bin/sh
# Makes clients of the HTTP API from its OpenAPI: FOLDER/python/muster_http and FOLDER/typescript/muster.d.ts.
#
#   scripts/clients.sh FOLDER             of this tree; `make clients` writes to build/clients
#   scripts/clients.sh FOLDER OPENAPI     of a file, such as one fetched from /openapi.json of your server
#
# Whatever stands in these two places is replaced. The generators are openapi-python-client and openapi-typescript, in the
# versions of scripts/clients/. docs/http.md shows how the clients are used. It needs Node.js 18 with npm.
# Exit codes: 0 ok, 2 an unknown option, 69 a program is missing, else that of the failed step.
set -eu
. "$(dirname "$0")/words.sh"
words any "$@"
case ${1:--} in -*) echo "$0: unknown word: ${1:-no folder}; see $0 --help" >&2; exit 2 ;; esac
mkdir -p "$1"
folder=$(cd "$1" && pwd) openapi=
[ $# -lt 2 ] || openapi=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
cd "$(dirname "$0")/.."
tools=$PWD/.tools/clients
[ "$tools/stamp" -nt scripts/clients/requirements.txt ] && [ "$tools/stamp" -nt scripts/clients/package-lock.json ] ||
    scripts/setup.sh --clients
[ -d "$tools/typescript/node_modules" ] || { echo 'clients: npm is missing: apt-get install nodejs npm' >&2; exit 69; }

if [ -n "$openapi" ]; then
    cp "$openapi" "$folder/openapi.json"
else
    .venv/bin/python scripts/clients/openapi.py >"$folder/openapi.json"
fi
.venv/bin/python scripts/clients/plain.py <"$folder/openapi.json" >"$folder/plain.json"
rm -rf "$folder/python" "$folder/typescript"
mkdir -p "$folder/python" "$folder/typescript"
PYTHONPATH=$tools/python PATH=$PWD/.venv/bin:$PATH .venv/bin/python -m openapi_python_client generate --fail-on-warning \
    --path "$folder/plain.json" --meta none --output-path "$folder/python/muster_http" --config scripts/clients/python.yml >&2
# A member with a default may be left out of a body.
"$tools/typescript/node_modules/.bin/openapi-typescript" "$folder/plain.json" --default-non-nullable false \
    --output "$folder/typescript/muster.d.ts" >&2
rm "$folder/plain.json"
