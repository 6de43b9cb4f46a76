# shellcheck shell=bash
# Shared by the scripts of the Makefile: exit codes that tell the truth about a log of tests.

# Fails when LOG names a test that was skipped: a target that exists to run that test has not passed.
nothing_skipped() {
    local skipped
    skipped=$(grep -h -e '^skipped: ' -e '^impossible here: ' "$1" | sort -u || true)
    [[ -n $skipped ]] || return 0
    printf '\nNot run on this machine, so this is a failure:\n%s\n' "$skipped" >&2
    return 1
}

# Runs the integration tests that match the filters behind "--", output in LOG and on the terminal. Fails when a
# filter matches no test, when a test fails and when one is skipped.
#
# usage: run_tests LOG [OPTION...] -- FILTER...
run_tests() {
    local log=$1 options=() filter listed
    shift
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    for filter in "$@"; do
        listed=$(cargo test --locked --test it -- --list "$filter")
        if ! grep -q ': test$' <<<"$listed"; then
            printf 'no test matches "%s": was it renamed?\n' "$filter" >&2
            return 1
        fi
    done
    cargo test --locked --test it -- --nocapture "${options[@]}" "$@" 2>&1 | tee "$log" | sed '/^told /d'
    nothing_skipped "$log"
}
