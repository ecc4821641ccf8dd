#!/bin/sh
# The whole suite: what reads the code, what runs the Rust parts, what runs everything. pytest's line is the last.
# What keeps time runs alone. scripts/rust.sh does not, and has the moments in which pytest's processes leave a processor
# idle; pytest prints what it said before its own summary (tests/conftest.py).
set -u
cd "$(dirname "$0")/.."
scripts/setup.sh --tests || exit $?
failed=0
scripts/lint.sh || failed=1
echo '== cargo test, with sockets and clocks' >&2
cargo test --quiet --manifest-path core/Cargo.toml -p muster-driver -p muster-udp || failed=1

idle='chrt -i 0'
$idle true 2>/dev/null || idle='nice -n 19'
said=$(mktemp)
exec 9>"$said"
flock 9 # the lock is held by whoever has the file open as rust.sh has it: until all of that has ended
# Linux shares processors between sessions first, where the class of one in another counts nothing: the session is last too.
# Of those without rights Linux takes that once in 100 ms, whoever they are: it is tried a few times.
last='for try in 1 2 3 4 5; do
    [ -w /proc/self/autogroup ] || break
    echo 19 2>/dev/null >/proc/self/autogroup && break
    sleep 0.1
done
exec scripts/rust.sh'
setsid $idle sh -c "$last" >&9 2>&1 </dev/null &
rust=$!
exec 9>&-
trap 'flock --nonblock "$said" true || { kill -- "-$rust" 2>/dev/null || kill "$rust"; wait "$rust"; }; rm -f "$said"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo '== pytest, and scripts/rust.sh beside it' >&2
unset PYTHONDONTWRITEBYTECODE # tests start a thousand processes: each would compile anew all that it imports
MUSTERTEST_BESIDE="$said" .venv/bin/pytest -m 'not soak' "$@" || failed=1
wait "$rust" || failed=1
cat "$said" >&2 # nothing is left where pytest lived to print it
exit "$failed"
