#!/bin/sh
# Sets up a fresh clone; does nothing if that is done already.
#
#   scripts/setup.sh           tools, locked dependencies, the compiled parts
#   scripts/setup.sh --demo    also the programs that the demo of all systems runs beside its nodes
#   scripts/setup.sh --clients also the generators of clients for the HTTP API, for scripts/clients.sh
#   scripts/setup.sh --tests   also the needs of the whole suite: clippy, and the servers that run beside Muster
#
# Everything it makes is in this folder: .tools/ (uv) and .venv/. Missing system packages are
# installed by apt if this runs as root; otherwise it prints the one line that installs them.
# Exit codes: 0 ok, 2 an unknown option, 69 a system package is missing, else that of the failed step.
set -eu
. "$(dirname "$0")/words.sh"
case ${1:-} in --demo | --clients) ;; *) words --tests "$@" ;; esac
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"

RUST_MIN=85 # 1.85, as `rust-version` in core/Cargo.toml
GO_MIN=25 # 1.25, as go.mod of centrifuge-go asks for
STAMPS=.venv/.stamps
EX_UNAVAILABLE=69

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$1"; exit "$EX_UNAVAILABLE"; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- system packages ---------------------------------------------------------------------------------------

python_min() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if have "$name" && python_min "$name"; then
            command -v "$name"
            return
        fi
    done
}

python_whole() { # also what Debian splits off: pip for a new venv, and the headers
    "$1" -c 'import ensurepip, os, sysconfig, venv
raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null
}

cargo_min() {
    minor=$(cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p')
    [ -n "$minor" ] && [ "$minor" -ge "$RUST_MIN" ]
}

compiler_works() { printf '#include <stdlib.h>\nint main(void) { return 0; }\n' | ${CC:-cc} -x c -o /dev/null - 2>/dev/null; }

debian_12() { # which has a current Rust beside its own 1.63
    # shellcheck disable=SC1091
    [ "$( (. /etc/os-release && echo "${ID:-} ${VERSION_ID:-}") 2>/dev/null)" = 'debian 12' ]
}

rust_packages() { debian_12 && echo rustc-web cargo-web || echo rustc cargo; }
clippy_package() { debian_12 && echo rust-web-clippy || echo rust-clippy; }

missing_packages() { # one line of Debian packages; empty when nothing is missing
    missing=
    python=$(find_python)
    [ -n "$python" ] && python_whole "$python" || missing="$missing python3 python3-venv python3-dev"
    compiler_works || missing="$missing gcc libc6-dev"
    cargo_min || missing="$missing $(rust_packages)"
    echo $missing
}

missing_for_tests() {
    missing=
    cargo clippy --version >/dev/null 2>&1 || missing=$(clippy_package)
    for name in redis-server mosquitto nats-server; do have "$name" || missing="$missing $name"; done
    have mosquitto_pub || missing="$missing mosquitto-clients"
    have mariadbd || missing="$missing mariadb-server"
    postgresql_there || missing="$missing postgresql"
    have systemd-analyze || missing="$missing systemd"
    have java || missing="$missing default-jre-headless"
    { zookeeper_there && kafka_there; } || have mvn || missing="$missing maven"
    for name in chromium nginx haproxy; do have "$name" || missing="$missing $name"; done
    for name in keepalived curl; do have "$name" || missing="$missing $name"; done
    have ip || missing="$missing iproute2"
    [ -e /usr/lib/nginx/modules/ngx_http_js_module.so ] || missing="$missing libnginx-mod-http-js"
    have node || missing="$missing nodejs"
    have npm || missing="$missing npm"
    have chromium || missing="$missing chromium"
    echo $missing
}

postgresql_there() {
    set -- /usr/lib/postgresql/*/bin/postgres
    [ -e "$1" ] || have postgres
}

zookeeper_there() {
    set -- .tools/zookeeper/zookeeper-3.*.jar
    [ -e "$1" ] || [ -e /usr/share/java/zookeeper.jar ]
}

kafka_there() {
    set -- .tools/kafka/kafka_2.13-*.jar
    [ -e "$1" ]
}

missing_for_demo() {
    missing=
    for name in redis-server mosquitto; do have "$name" || missing="$missing $name"; done
    echo $missing
}

can_apt() { [ "$(id -u)" = 0 ] && have apt-get; }

apt_install() { # no system service is started by it
    say "installing by apt: $*"
    guard=/usr/sbin/policy-rc.d
    if [ -e "$guard" ]; then
        guard=
    else
        trap 'rm -f "$guard"' EXIT INT TERM
        printf '#!/bin/sh\nexit 101\n' >"$guard"
        chmod 755 "$guard"
    fi
    {
        apt-get -qq update &&
            DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends ca-certificates "$@"
    } >/dev/null </dev/null || die "apt could not install: $*"
    [ -z "$guard" ] || rm -f "$guard"
    trap - EXIT INT TERM
}

need_system() {
    packages=$(missing_packages)
    [ -n "$packages" ] || return 0
    # shellcheck disable=SC2086
    if can_apt; then apt_install $packages; else
        have apt-get && die "missing; run: apt-get install --no-install-recommends $packages"
        die "missing: Python >= 3.11 with headers and venv, a C compiler, or cargo >= 1.$RUST_MIN (Debian's names: $packages)"
    fi
    packages=$(missing_packages)
    [ -z "$packages" ] || die "still missing after apt: $packages (cargo >= 1.$RUST_MIN can also be installed with rustup)"
}

need_for_demo() { # systems whose program is missing are left out by scripts/run.sh, which says so
    packages=$(missing_for_demo)
    # shellcheck disable=SC2086
    [ -z "$packages" ] || ! can_apt || apt_install $packages
}

need_for_tests() {
    packages=$(missing_for_tests)
    [ -n "$packages" ] || return 0
    # shellcheck disable=SC2086
    if can_apt; then
        apt_install $packages
    elif [ "${CI:-}" = true ]; then
        die "missing; run: apt-get install --no-install-recommends $packages"
    else
        say "what needs these is skipped; to run it too: apt-get install --no-install-recommends $packages"
    fi
}

fetch_jars() { # the jars of scripts/NAME.pom.xml into .tools/NAME/, by Maven
    have mvn || return
    say "fetching $2 into .tools/$1/"
    if mvn --quiet --batch-mode --file "scripts/$1.pom.xml" -Dmaven.repo.local="$PWD/.tools/m2" \
        dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$PWD/.tools/$1" >&2; then
        rm -rf .tools/m2
    else
        rm -rf .tools/m2 ".tools/$1"
        return 1
    fi
}

need_zookeeper() { # its jars by Maven, else Debian's, which are older
    zookeeper_there || fetch_jars zookeeper ZooKeeper && return
    if can_apt; then
        apt_install libzookeeper-java
    elif [ "${CI:-}" = true ]; then
        die 'missing; run: apt-get install --no-install-recommends libzookeeper-java'
    else
        say 'what needs ZooKeeper is skipped; to run it too: apt-get install --no-install-recommends libzookeeper-java'
    fi
}

need_kafka() {
    kafka_there || fetch_jars kafka Kafka && return
    [ "${CI:-}" != true ] || die 'missing: the jars of Kafka, which Maven fetches; run: apt-get install maven'
    say 'what needs Kafka is skipped; to run it too: apt-get install maven, then scripts/setup.sh --tests'
}

# The SDKs of Centrifuge, by their own package clients, into .tools/sdks/. Debian 12's Go is too old for the one for Go.
need_sdks() {
    programs=tests/edge/programs sdks=.tools/sdks
    wanted=$(find $programs -type f -print | digest)
    [ "$(cat $sdks/stamp 2>/dev/null)" != "$wanted" ] || return 0
    say 'fetching the SDKs of Centrifuge into .tools/sdks/'
    rm -rf $sdks && mkdir -p $sdks/js $sdks/go
    whole=yes
    cp $programs/js/package.json $programs/js/package-lock.json $sdks/js/
    have npm && npm ci --silent --ignore-scripts --no-audit --no-fund --prefix $sdks/js >&2 || lacks_sdk 'JavaScript' 'apt-get install nodejs npm'
    uv pip install --quiet --target $sdks/python --require-hashes -r $programs/python/requirements.txt >&2 || lacks_sdk 'Python' ''
    go_min && (cd $programs/go && go build -o "$OLDPWD/$sdks/go/cases" .) >&2 || lacks_sdk 'Go' "Go 1.$GO_MIN from https://go.dev/dl/"
    [ $whole != yes ] || echo "$wanted" >$sdks/stamp
}

# The generators of scripts/clients.sh, by their package clients, into .tools/clients/.
need_clients() {
    clients=.tools/clients
    wanted=$(printf '%s\n' scripts/clients/requirements.txt scripts/clients/package.json scripts/clients/package-lock.json | digest)
    [ "$(cat $clients/stamp 2>/dev/null)" != "$wanted" ] || return 0
    say 'fetching the generators of clients into .tools/clients/'
    rm -rf $clients && mkdir -p $clients/typescript
    whole=yes
    cp scripts/clients/package.json scripts/clients/package-lock.json $clients/typescript/
    have npm && npm ci --silent --ignore-scripts --no-audit --no-fund --prefix $clients/typescript >&2 || lacks_sdk 'TypeScript' 'apt-get install nodejs npm'
    uv pip install --quiet --target $clients/python --require-hashes -r scripts/clients/requirements.txt >&2 || lacks_sdk 'Python' ''
    [ $whole != yes ] || echo "$wanted" >$clients/stamp
}

go_min() {
    minor=$(go version 2>/dev/null | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p')
    [ -n "$minor" ] && [ "$minor" -ge "$GO_MIN" ]
}

lacks_sdk() { # its name, and what is to be got
    whole=no
    [ "${CI:-}" != true ] || die "the SDK for $1 is missing${2:+; get $2}"
    say "what needs the SDK for $1 is skipped${2:+; to run it too: $2, then scripts/setup.sh --tests}"
}

# --- parts in this folder ----------------------------------------------------------------------------------

# One digest per part. A part with an unchanged digest in its stamp is not touched.
digest() { LC_ALL=C sort | tr '\n' '\0' | xargs -0 sha256sum | sha256sum | cut -c1-64; }

lock_digest() { printf '%s\n' requirements.lock | digest; }

core_sources() {
    find core \( -name target -o -name fuzz -o -path core/planted -o -name __pycache__ \) -prune -o -type f \
        \( -name '*.rs' -o -name Cargo.toml -o -name Cargo.lock -o -path core/pyproject.toml \) -print
}

core_digest() { core_sources | digest; }

server_digest() {
    {
        core_sources
        find pyext -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.h' \)
        printf '%s\n' pyproject.toml setup.py
    } | digest
}

fresh() { [ "$(cat "$STAMPS/$1" 2>/dev/null)" = "$2" ]; }
stamp() { mkdir -p "$STAMPS" && printf '%s\n' "$2" >"$STAMPS/$1"; }

uv() {
    VIRTUAL_ENV="$PWD/.venv" UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never .tools/bin/uv "$@"
}

need_uv() {
    .tools/bin/uv --version >/dev/null 2>&1 && return
    say 'installing uv into .tools/'
    rm -rf .tools
    "$(find_python)" -m venv .tools
    .tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r scripts/uv.lock.txt >&2
}

install_locked() {
    if ! .venv/bin/python -c '' 2>/dev/null; then
        rm -rf .venv
        uv venv --quiet --python "$(find_python)" .venv
    fi
    say 'installing the locked dependencies into .venv/'
    rm -rf "$STAMPS"
    uv pip sync --quiet --require-hashes requirements.lock
    stamp lock "$1"
}

build_core() {
    say 'building the library, with the engine of clients (Rust)'
    uv pip install --quiet --no-deps --no-build-isolation --reinstall -e core
    stamp core "$1"
}

build_server() {
    say 'building the server: engines (Rust), kernels (Cython) and the command'
    uv pip install --quiet --no-deps --no-build-isolation --reinstall -e .
    stamp server "$1"
}

main() {
    if [ -n "${PIP_INDEX_URL:-}" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        export UV_DEFAULT_INDEX="$PIP_INDEX_URL" # a machine whose mirror only pip was told of
    fi
    lock=$(lock_digest) core=$(core_digest) server=$(server_digest)
    .venv/bin/python -c '' 2>/dev/null || rm -rf "$STAMPS"
    if ! { fresh lock "$lock" && fresh core "$core" && fresh server "$server"; }; then
        need_system
        need_uv
        fresh lock "$lock" || install_locked "$lock"
        fresh core "$core" || build_core "$core"
        fresh server "$server" || build_server "$server"
    fi
    [ "${1:-}" != --demo ] || need_for_demo
    [ "${1:-}" != --clients ] || need_clients
    if [ "${1:-}" = --tests ]; then
        need_for_tests
        need_zookeeper
        need_kafka
        need_sdks
        need_clients
        # The edge's tests run this program.
        cargo build --locked --quiet --manifest-path core/Cargo.toml -p muster-edge --example hub >&2
    fi
}

main "$@"
