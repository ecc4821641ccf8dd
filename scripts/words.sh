# The words of a script of this folder, which sources it: `words TAKES "$@"` with the one option that it takes, `any` or `none`.
# `--help` prints the head comment of the script; an unknown word is refused with 2.

words() {
    takes=$1
    shift
    for word; do
        case $word in
            -h | --help)
                sed -n -e '1d' -e '/^#/!q' -e 's/^# \{0,1\}//p' "$0"
                exit 0
                ;;
        esac
        [ "$takes" != any ] || return 0
        if [ "$word" != "$takes" ]; then
            echo "$0: unknown word: $word; see $0 --help" >&2
            exit 2
        fi
    done
}
