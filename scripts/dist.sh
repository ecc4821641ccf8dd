#!/bin/sh
# Builds what is handed out, in dist/: a wheel and a source archive each of muster and muster-server.
#
# The wheel of muster is for every CPython from 3.11 on, that of muster-server for the CPython of .venv/ (PYTHON chose it when
# scripts/setup.sh made it). auditwheel names the oldest C library that a wheel runs with, as its manylinux tag, and refuses
# a wheel that fits none. The wheel of muster-server is built from its source archive, so neither has a file of its own; crates
# of others that scripts/setup.sh has compiled are not compiled again for it.
# Exit codes: 0 ok, else that of the failed step.
set -eu
. "$(dirname "$0")/words.sh"
words none "$@"
cd "$(dirname "$0")/.."

uv_build() {
    VIRTUAL_ENV="$PWD/.venv" UV_PYTHON_DOWNLOADS=never .tools/bin/uv build --quiet --no-build-isolation --offline \
        --python .venv/bin/python --out-dir "$made" "$@"
}

main() {
    scripts/setup.sh
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    echo 'dist: building muster' >&2
    uv_build --sdist core
    uv_build --wheel core
    echo 'dist: building muster-server' >&2
    CARGO_TARGET_DIR="$PWD/core/target" uv_build .
    rm -rf dist
    mkdir dist
    PATH="$PWD/.venv/bin:$PATH" .venv/bin/auditwheel repair --patcher none --wheel-dir dist "$made"/*.whl
    mv "$made"/*.tar.gz dist
    ls -l dist
}

main
