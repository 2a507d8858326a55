//go:build !unix

package stack

import "syscall"

// SIGSTOP and SIGCONT do not exist on this system, because it cannot suspend a process. Sending one of them returns an
// error.
const (
	SIGSTOP = syscall.Signal(-1)
	SIGCONT = syscall.Signal(-2)
)
