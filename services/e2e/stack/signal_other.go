//go:build !unix

package stack

import "syscall"

// SIGSTOP and SIGCONT are not signals on this system, which cannot stop a process. Sending one returns an error.
const (
	SIGSTOP = syscall.Signal(-1)
	SIGCONT = syscall.Signal(-2)
)
