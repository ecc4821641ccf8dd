#!/bin/sh
# Everything that reads the code without running it. Goes through all checks, then says whether one failed.
set -u
cd "$(dirname "$0")/.."
failed=0
check() {
    printf '== %s\n' "$*" >&2
    "$@" || failed=1
}
check .venv/bin/ruff check .
check .venv/bin/ruff format --check .
check .venv/bin/mypy
check .venv/bin/lint-imports
check .venv/bin/stubtest muster._core
if cargo clippy --version >/dev/null 2>&1; then
    check cargo clippy --quiet --manifest-path core/Cargo.toml --workspace --all-targets -- -D warnings
elif [ "${CI:-}" = true ]; then
    echo 'lint: cargo clippy is missing' >&2
    failed=1
else
    echo 'lint: no cargo clippy here, skipped' >&2
fi
exit "$failed"
