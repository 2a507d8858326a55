//go:build !unix

package stack

import "syscall"

// SIGSTOP and SIGCONT do not exist on this system, because a process cannot be suspended here. Sending them returns an
// error.
const (
	SIGSTOP = syscall.Signal(-1)
	SIGCONT = syscall.Signal(-2)
)
