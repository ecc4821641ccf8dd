#!/bin/sh
# Known bugs, planted from outside: core/ with the files of core/planted/overlay and the patches of core/planted/patches has
# all of them behind switches, and its tests must find each (core/planted/README.md).
#
#   scripts/planted.sh        lays this tree in core/target/planted/core and runs its tests
#   scripts/planted.sh lay    only lays it
#   scripts/planted.sh edit   lays it in core/target/planted/edit, to be changed there. It merges patches that no longer
#                             apply, and lists the files where conflicts or *.rej files are left to do by hand
#   scripts/planted.sh save   writes overlay and patches from core/target/planted/edit, and removes this folder
#
# It needs git, but not the project's repository: with it, `edit` can also merge patches of code that has changed much.
# Exit codes: 0 ok; 1 a test failed, or a patch does not apply; 2 an unknown word; 69 git is missing.
set -eu
. "$(dirname "$0")/words.sh"
words any "$@"
script=$0
die() { # TEXT [CODE]
    echo "$script: $1" >&2
    exit "${2:-1}"
}

case $* in
    '' | lay | edit | save) ;;
    *) die "unknown word: $*; see $script --help" 2 ;;
esac
cd "$(dirname "$0")/.."
command -v git >/dev/null || die 'git is missing' 69
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE # as of a hook that runs this
history=$(git rev-parse --path-format=absolute --git-path objects 2>/dev/null) || history=
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
planted=core/planted
place=core/target/planted
edit=$place/edit
store=$PWD/$place/store # a repository of its own

within() { # INDEX FOLDER WORDS…: git with this index, and the folder as its work tree
    (
        export GIT_INDEX_FILE="$store/$1" GIT_DIR="$store" GIT_WORK_TREE=.
        cd "$2"
        shift 2
        exec git -c core.excludesFile=/dev/null "$@"
    )
}

clean() { # prints the tree of core/ as it is now
    mkdir -p "$place"
    [ -d "$store" ] || git init --quiet --bare --template= "$store"
    mkdir -p "$store/info"
    printf '%s\n' /target /fuzz /planted /python '*.so' >"$store/info/exclude"
    echo "$history" >"$store/objects/info/alternates"
    within clean.index core add --all .
    within clean.index core write-tree
}

overlay() { # INDEX TREE: makes the index that of the tree with the overlay
    within "$1" core read-tree "$2"
    within "$1" "$planted/overlay" add --ignore-removal .
}

spread() { # INDEX FOLDER TREE: writes only files that differ, so cargo builds only what has changed
    mkdir -p "$2"
    within "$1" "$2" read-tree --reset -u "$3"
}

patches() {
    find "$planted/patches" -name '*.patch' | sort
}

lay() {
    base=$(clean)
    overlay planted.index "$base"
    unfit=
    for patch in $(patches); do
        within planted.index core apply --cached --whitespace=nowarn - <"$patch" || unfit="$unfit $patch"
    done
    [ -z "$unfit" ] || die "these patches do not apply to core/:$unfit
Mend them: run scripts/planted.sh edit, change what it lists, run scripts/planted.sh save."
    spread laid.index "$place/core" "$(within planted.index core write-tree)"
    # Tests read files at these places beside their crates.
    ln -sfn "$PWD/docs" "$PWD/tests" "$place/"
    ln -sfn "$PWD/core/fuzz" "$place/core/"
}

find_bugs() {
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/core/target}" # what other crates need is built there
    tests="cargo test --locked --quiet --manifest-path $place/core/Cargo.toml"
    failed=0
    $tests --release -p muster-sim --test planted || failed=1
    $tests --no-fail-fast -p muster-journal -p muster-likes -p muster-presence -p muster-edge planted || failed=1
    $tests -p muster-rooms --features edge --test edge --test ahead planted || failed=1
    return "$failed"
}

part() { # PATCH FILE: the part of a patch that changes this file
    awk -v head="diff --git a/$2 b/$2" '/^diff --git / { within = $0 == head } within' "$1"
}

begin_edit() {
    [ ! -e "$edit" ] || die "there is $edit already: run scripts/planted.sh save, or remove the folder"
    base=$(clean)
    echo "$base" >"$store/edit.base"
    overlay edit.index "$base"
    spread edit.index "$edit" "$(within edit.index core write-tree)"
    for patch in $(patches); do
        for file in $(sed -n 's#^diff --git a/\(.*\) b/.*#\1#p' "$patch"); do
            part "$patch" "$file" >"$store/part"
            within edit.index "$edit" apply --3way --whitespace=nowarn "$store/part" 2>/dev/null && continue
            [ -z "$(within edit.index "$edit" ls-files --unmerged "$file")" ] || continue
            if [ -e "$edit/$file" ]; then
                within edit.index "$edit" apply --reject --whitespace=nowarn "$store/part" 2>/dev/null || true
            else
                mkdir -p "$(dirname "$edit/$file")"
                cp "$store/part" "$edit/$file.rej"
            fi
        done
    done
    echo "$edit is the tree with all bugs: change it, then run scripts/planted.sh save"
    left
}

left() { # lists conflicts and rejected parts
    within edit.index "$edit" grep --no-index -l --exclude-standard '^<<<<<<< ' | sed 's/$/: has conflicts/' || true
    (cd "$edit" && find . -name target -prune -o -name '*.rej' -print | sed 's#^\./##; s/$/: do by hand what did not apply, and remove this file/')
}

save_edit() {
    [ -d "$edit" ] || die "there is no $edit to save: run scripts/planted.sh edit first"
    todo=$(left)
    [ -z "$todo" ] || die "$edit is not ready:
$todo"
    base=$(cat "$store/edit.base")
    within edit.index "$edit" add --all .
    saved=$place/saved
    rm -rf "$saved"
    mkdir -p "$saved/overlay" "$saved/patches"
    changes='diff --cached --no-renames'
    # shellcheck disable=SC2086
    within edit.index "$edit" $changes --name-only --diff-filter=A "$base" | while read -r file; do
        mkdir -p "$(dirname "$saved/overlay/$file")"
        cp "$edit/$file" "$saved/overlay/$file"
    done
    # shellcheck disable=SC2086
    for crate in $(within edit.index "$edit" $changes --name-only --diff-filter=a "$base" | cut -d/ -f1 | sort -u); do
        within edit.index "$edit" $changes --full-index --diff-filter=a "$base" -- "$crate" >"$saved/patches/$crate.patch"
    done
    for kind in overlay patches; do
        rm -rf "${planted:?}/$kind"
        mv "$saved/$kind" "$planted/"
    done
    rmdir "$saved"
    rm -rf "$edit"
    lay
}

case $* in
    '')
        lay
        find_bugs
        ;;
    lay) lay ;;
    edit) begin_edit ;;
    save) save_edit ;;
esac
