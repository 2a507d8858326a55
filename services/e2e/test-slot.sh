#!/usr/bin/env bash
# Runs a test program when a slot is free: test-slot.sh LOCK PROGRAM ARG... The slots are the files LOCK.1 and LOCK.2, so
# at most two packages are tested at a time while `go test` builds the next ones. The second slot is used only while the
# processors are not saturated, because the tests of a slow machine would otherwise run out of time.
set -euo pipefail
exec 8>"$1.1" 9>"$1.2"
shift
# On Linux, "some avg10" is the share of the last 10 s in which a process waited for a processor, in percent.
saturated() {
	local share=0
	if [ -r /proc/pressure/cpu ]; then read -r _ share _ </proc/pressure/cpu; fi
	share=${share#avg10=}
	[ "${share%.*}" -ge 70 ]
}
until flock -w 0.1 8 || { ! saturated && flock -w 0.1 9; }; do :; done
"$@" 8>&- 9>&-
