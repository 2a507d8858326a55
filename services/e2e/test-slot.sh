#!/usr/bin/env bash
# Runs a test program when one of two slots is free: test-slot.sh LOCK PROGRAM ARG... The slots are the files LOCK.1 and
# LOCK.2, so at most two packages are tested at a time while `go test` builds the next ones.
set -euo pipefail
exec 8>"$1.1" 9>"$1.2"
shift
until flock -w 0.1 8 || flock -w 0.1 9; do :; done
"$@" 8>&- 9>&-
