# What the walks share: a command is shown with what it prints, and a walk ends where that is not as it should be.
set -euo pipefail
walks=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
    printf 'walk failed: %s\n' "$*" >&2
    exit 1
}

# run STATUS COMMAND ...: the command has to end with that status; what it prints is kept in $said.
run() {
    local wanted=$1 status=0
    shift
    printf '\n$ %s\n' "$*"
    said=$("$@" 2>&1) || status=$?
    printf '%s\n' "$said"
    test "$status" -eq "$wanted" || fail "the status of '$*' is $status and not $wanted"
}

# says WORDS ...: the last command has to have printed each of these, whatever spaces lie between words.
says() {
    local words line
    line=$(tr -s ' \n' ' ' <<< "$said")
    for words; do [[ $line == *"$words"* ]] || fail "the answer does not have the words '$words'"; done
}

# has FILE ...: each of these files has to be there, and not empty.
has() {
    local file
    for file; do test -s "$file" || fail "there is no file $file"; done
}
