#!/bin/sh
# The tests of Rust parts with a clock of their own: their speed does not matter.
# Runs all of them, then reports failures.
set -u
. "$(dirname "$0")/words.sh"
words none "$@"
cd "$(dirname "$0")/.."
failed=0
echo '== cargo test'
cargo test --locked --quiet --no-fail-fast --manifest-path core/Cargo.toml --workspace --exclude muster-driver --exclude muster-udp \
  --exclude muster-tcp || failed=1
echo '== simulator'
simulator='cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim --'
$simulator --lossy --seeds 0..2 || failed=1 # builds it
scripts/beside.sh <<COMMANDS || failed=1
$simulator --matrix --seeds 0..1
$simulator --grows --seeds 0..100
$simulator --members --seeds 0..300
$simulator --seeds 0..100
$simulator --kills --seeds 0..50
$simulator --commands --seeds 0..50
$simulator --ahead --seeds 0..50
$simulator --filters --seeds 0..50
$simulator --rekeys --seeds 0..50
$simulator --moves --seeds 0..50
$simulator --relays --seeds 0..50
COMMANDS
echo '== planted bugs'
scripts/planted.sh || failed=1
[ "$failed" = 0 ] || echo '== one of these failed'
exit "$failed"
