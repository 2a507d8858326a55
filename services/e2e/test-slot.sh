#!/usr/bin/env bash
# Runs a test program when a slot is free: test-slot.sh FIFO PROGRAM ARG... Each byte in the FIFO is a free slot.
# With this script, `go test` builds packages while the test programs of other packages run or wait.
set -euo pipefail
exec 9<>"$1"
shift
read -rn 1 -u 9 slot
trap 'printf %s "$slot" >&9' EXIT
"$@" 9>&-
