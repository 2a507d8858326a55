//go:build unix

package stack

import "syscall"

// SIGSTOP stops a process, and SIGCONT continues it.
const (
	SIGSTOP = syscall.SIGSTOP
	SIGCONT = syscall.SIGCONT
)
