#!/bin/sh
# All checks that read the code without running it. Runs all of them, then reports failures.
set -u
. "$(dirname "$0")/words.sh"
words none "$@"
cd "$(dirname "$0")/.."
failed=0
checks='.venv/bin/mypy
.venv/bin/stubtest muster._core muster_server._engines
.venv/bin/lint-imports
.venv/bin/ruff check .
.venv/bin/ruff format --check .'
if cargo clippy --version >/dev/null 2>&1; then # the longest goes first
    checks="cargo clippy --locked --quiet --manifest-path core/Cargo.toml --workspace --all-targets -- -D warnings
$checks"
elif [ "${CI:-}" = true ]; then
    echo 'lint: cargo clippy is missing' >&2
    failed=1
else
    echo 'lint: no cargo clippy here, skipped' >&2
fi
format='scripts/planted.sh lay' # each patch of planted bugs must apply
if cargo fmt --version >/dev/null 2>&1; then
    format="$format && cargo fmt --check --all --manifest-path core/target/planted/core/Cargo.toml"
else
    echo 'lint: no cargo fmt here, skipped' >&2
fi
checks="$checks
$format"
echo "$checks" | scripts/beside.sh || failed=1
exit "$failed"
