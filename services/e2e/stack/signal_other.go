//go:build !unix

package stack

import "syscall"

// No process can be made to stand still here: these are no signals, and to send one is an
// error.
const (
	SIGSTOP = syscall.Signal(-1)
	SIGCONT = syscall.Signal(-2)
)
