#!/bin/sh
# Writes requirements.lock from pyproject.toml: every dependency and tool, for every system, by hash. Also
# scripts/uv.lock.txt, with the tool that installs them.
# It names no address to download from: the installing machine has one.
set -eu
. "$(dirname "$0")/words.sh"
words none "$@"
cd "$(dirname "$0")/.."
scripts/setup.sh
UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never .tools/bin/uv pip compile --quiet --universal --generate-hashes \
    --no-annotate --no-header --no-emit-index-url --no-emit-find-links --no-emit-package muster --python-version 3.11 \
    --all-extras --group dev pyproject.toml -o requirements.lock
printf 'uv>=0.13,<0.14\n' | UV_SYSTEM_CERTS=1 .tools/bin/uv pip compile --quiet --universal --generate-hashes --no-annotate \
    --no-header --no-emit-index-url --no-emit-find-links --python-version 3.11 - -o scripts/uv.lock.txt
! grep -nE 'https?://|--(index|find-links)' requirements.lock scripts/uv.lock.txt
