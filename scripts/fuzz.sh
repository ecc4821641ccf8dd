#!/bin/sh
# Runs every fuzz target of core/fuzz for a while (SECONDS_EACH, 60), with cargo-fuzz on a nightly toolchain.
set -eu
. "$(dirname "$0")/words.sh"
words any "$@"
cd "$(dirname "$0")/../core/fuzz"
cargo +nightly fuzz --version >/dev/null 2>&1 || {
    echo 'fuzz: missing; run: rustup toolchain install nightly && cargo install cargo-fuzz' >&2
    exit 69
}
for target in $(cargo +nightly fuzz list); do
    # No address sanitizer: the machines' crates forbid unsafe code, and without it a role runs three times as often.
    cargo +nightly fuzz run --sanitizer none "$target" -- -max_len=4096 -max_total_time="${SECONDS_EACH:-60}" "$@"
done
