#!/bin/sh
# The checks before a commit: scripts/lint.sh, the tests of Rust crates with changes, and the Python tests that find most.
#
#   scripts/check.sh          or `make check`
#
# It takes three minutes on two processors from a built tree. scripts/test.sh runs everything.
# Exit codes: 0 ok, 1 something failed.
set -eu
. "$(dirname "$0")/words.sh"
words none "$@"
cd "$(dirname "$0")/.."

changed() { # crates with changes that are not committed, as words of cargo
    git status --porcelain -- core 2>/dev/null |
        sed -n 's#^.. core/\([a-z]*\)/\(src\|tests\|Cargo.toml\).*#--package muster-\1#p' | sort -u | paste -sd' ' -
}

crates=$(changed)
checks='scripts/lint.sh
.venv/bin/pytest -q -m "not soak" tests/test_architecture.py tests/test_build.py tests/test_limits.py tests/test_rules.py tests/plane tests/pyext
.venv/bin/pytest -q -m "not soak" tests/reference tests/rooms'
[ -z "$crates" ] || checks="$checks
cargo test --locked --quiet --manifest-path core/Cargo.toml $crates"
unset PYTHONDONTWRITEBYTECODE
echo "$checks" | scripts/beside.sh
