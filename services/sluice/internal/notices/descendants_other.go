//go:build !unix

package notices

import "os/exec"

// killDescendants does nothing. On this system, only the command itself is killed when its context is done, and not the
// processes that it has started.
func killDescendants(*exec.Cmd) {}
