#!/usr/bin/env bash
# Tests the packages again that failed while other packages were tested at the same time: retest.sh LIMIT LOG FLAG...
# LOG is the output of `go test`. If more than LIMIT packages failed, nothing is tested again, and the script fails. The
# script also fails after errors that a busy machine can't cause: a data race, a panic, or a package that can't be built.
set -euo pipefail
limit=$1 log=$2
shift 2
if grep -qE '^(WARNING: DATA RACE|panic: |fatal error: |FAIL[[:space:]]+[^[:space:]]+ \[)' "$log"; then exit 1; fi
mapfile -t failed < <(awk '$1 == "FAIL" && NF == 3 { print $2 }' "$log" | sort -u)
if [ "${#failed[@]}" = 0 ] || [ "${#failed[@]}" -gt "$limit" ]; then exit 1; fi
echo "These packages failed, and are tested once more, one at a time: ${failed[*]}"
go test -p 1 -count=1 "$@" "${failed[@]}"
echo "These packages failed once, and passed alone. Look for the cause of the first failure: ${failed[*]}"
