//go:build !unix

package notices

import "os/exec"

// killDescendants does nothing: the end of a command's context kills only the command itself.
func killDescendants(*exec.Cmd) {}
