#!/bin/sh
# The whole suite: what reads the code, what runs the Rust parts, what runs everything. pytest's line is the last.
# Whatever is only reckoned runs beside each other; pytest, whose processes have deadlines, runs alone.
set -u
cd "$(dirname "$0")/.."
scripts/setup.sh --tests || exit $?
failed=0
scripts/lint.sh || failed=1
echo '== cargo test' >&2
cargo test --quiet --manifest-path core/Cargo.toml --workspace || failed=1
echo '== simulator' >&2
simulator='cargo run --release --quiet --manifest-path core/Cargo.toml -p muster-sim --'
$simulator --lossy --seeds 0..2 || failed=1 # builds it
scripts/beside.sh <<END || failed=1
$simulator --matrix --seeds 0..1
$simulator --grows --seeds 0..100
$simulator --members --seeds 0..300
$simulator --seeds 0..100
$simulator --kills --seeds 0..50
$simulator --commands --seeds 0..50
$simulator --rekeys --seeds 0..50
$simulator --moves --seeds 0..50
END
echo '== planted bugs' >&2
cargo test --release --quiet --manifest-path core/Cargo.toml -p muster-sim --features planted --test planted || failed=1
echo '== pytest' >&2
unset PYTHONDONTWRITEBYTECODE # tests start a thousand processes: each would compile anew all that it imports
.venv/bin/pytest -m 'not soak' "$@" || failed=1
exit "$failed"
