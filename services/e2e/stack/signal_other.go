//go:build !unix

package stack

import "syscall"

// A process can't be stopped on this system. These values are not signals; sending one is an error.
const (
	SIGSTOP = syscall.Signal(-1)
	SIGCONT = syscall.Signal(-2)
)
