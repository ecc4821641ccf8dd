#!/bin/sh
# The whole suite: checks of the code, the Rust parts, all Python tests. The last line counts all tests.
#
#   scripts/test.sh           groups of tests, see below
#   scripts/test.sh WORDS…    one pytest with these words
#
# Tests mostly wait. So three groups run at once, and scripts/rust.sh uses the processors while all wait.
# Tests that measure run alone, after all of that.
set -u
. "$(dirname "$0")/words.sh"
words any "$@"
cd "$(dirname "$0")/.."
room() { # FOLDER GIB: on a full disk the suite would wait for servers that cannot write
    free=$(df -Pk "$1" | awk 'END { print int($4 / 1048576) }')
    [ "$free" -ge "$2" ] || { echo "$0: the suite needs $2 GiB in $1, which has $free GiB free" >&2; exit 69; }
}
[ -d core/target/debug/deps ] || room . 6 # what it builds
room "${TMPDIR:-/tmp}" 2
[ "${CI:-}" != true ] || export CARGO_INCREMENTAL=0 # it builds once: what builds a change faster would only take disk
scripts/setup.sh --tests || exit $?
failed= # the parts beside pytest that failed
scripts/lint.sh || failed="$failed scripts/lint.sh"
echo '== cargo test, with sockets and clocks' >&2
cargo test --locked --quiet --manifest-path core/Cargo.toml -p muster-driver -p muster-udp -p muster-tcp || failed="$failed cargo-test"
# While Rust tests are built, cargo lets nothing else be built: so scripts/setup.sh has built it.
MUSTERTEST_HUB=$PWD/${CARGO_TARGET_DIR:-core/target}/debug/examples/hub
export MUSTERTEST_HUB

said=$(mktemp -d) # what each part prints, and the results of each pytest
running=          # process ids of pytest
rust=
end() {
    # shellcheck disable=SC2086
    [ -z "$running" ] || { kill -INT $running 2>/dev/null; wait $running; } # pytest stops the servers of its tests
    [ -z "$rust" ] || { kill -- "-$rust" 2>/dev/null || kill "$rust" 2>/dev/null; wait "$rust"; }
    rm -rf "$said"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

idle='chrt -i 0'
$idle true 2>/dev/null || idle='nice -n 19'
# Linux shares processors between sessions first, and classes count only within one: so this session becomes the last.
# Linux accepts one such change in 100 ms from all users without rights: so try a few times.
last='for try in 1 2 3 4 5; do
    [ -w /proc/self/autogroup ] || break
    echo 19 2>/dev/null >/proc/self/autogroup && break
    sleep 0.1
done
exec scripts/rust.sh'
setsid $idle sh -c "$last" >"$said/rust" 2>&1 </dev/null &
rust=$!

unset PYTHONDONTWRITEBYTECODE # tests start a thousand processes: each would compile anew all that it imports
ended=
begin() { # NAME WORDS…
    name=$1
    shift
    # The shell makes background processes ignore Ctrl-C, and nohup SIGHUP.
    env --default-signal=INT,HUP .venv/bin/pytest -m 'not soak' --durations=10 --junitxml="$said/$name.xml" "$@" &
    running="$running $!"
}
finish() { # NAME: waits for the pytest that began first
    # shellcheck disable=SC2086
    set -- "$1" $running
    code=0
    wait "$2" || code=$?
    ended="$ended $said/$1.xml:$code"
    shift 2
    running="$*"
}
print_rust() {
    wait "$rust" || failed="$failed scripts/rust.sh"
    rust=
    echo '== scripts/rust.sh' >&2
    cat "$said/rust" >&2
}

if [ $# = 0 ]; then
    control='tests/console tests/control tests/http tests/likes tests/portal tests/probes tests/rooms' # about as long as each other group
    echo "== pytest: all but tests/bench in three groups, and beside them scripts/rust.sh" >&2
    # shellcheck disable=SC2046,SC2086
    begin others tests $(printf -- '--ignore=%s ' $control) --ignore=tests/faults --ignore=tests/bench
    # shellcheck disable=SC2086
    begin control $control >"$said/control" 2>&1
    begin faults tests/faults >"$said/faults" 2>&1
    finish others
    for group in control faults; do
        finish "$group"
        echo "== pytest: $group" >&2
        cat "$said/$group"
    done
    print_rust
    echo '== pytest: tests/bench' >&2
    begin bench tests/bench
    finish bench
else
    echo '== pytest, beside it scripts/rust.sh' >&2
    begin all "$@"
    finish all
    print_rust
fi
# shellcheck disable=SC2086
.venv/bin/python -m tests.closing $ended $failed
