//go:build unix

package stack

import "syscall"

// A process stands still after the one, and goes on after the other.
const (
	SIGSTOP = syscall.SIGSTOP
	SIGCONT = syscall.SIGCONT
)
