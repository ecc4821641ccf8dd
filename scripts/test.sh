#!/bin/sh
# The whole suite: what reads the code, what runs the Rust parts, what runs everything. pytest's line is the last.
set -u
cd "$(dirname "$0")/.."
scripts/setup.sh --tests || exit $?
failed=0
scripts/lint.sh || failed=1
echo '== cargo test' >&2
cargo test --quiet --manifest-path core/Cargo.toml --workspace || failed=1
echo '== simulator' >&2
cargo run --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --seeds 0..100 || failed=1
cargo run --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --members --seeds 0..300 || failed=1
cargo run --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --kills --seeds 0..50 || failed=1
cargo run --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --moves --seeds 0..50 || failed=1
cargo run --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --grows --seeds 0..100 || failed=1
cargo run --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --rekeys --seeds 0..50 || failed=1
cargo run --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --matrix --seeds 0..1 || failed=1
cargo run --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --commands --seeds 0..50 || failed=1
cargo run --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --lossy --seeds 0..2 || failed=1
echo '== planted bugs' >&2
cargo test --release --quiet --manifest-path core/Cargo.toml -p muster-sim --features planted --test planted || failed=1
echo '== pytest' >&2
unset PYTHONDONTWRITEBYTECODE # tests start a thousand processes: each would compile anew all that it imports
.venv/bin/pytest -m 'not soak' "$@" || failed=1
exit "$failed"
