//go:build !linux

package sandbox

import (
	"errors"
	"os"
	"syscall"
)

// try returns an error if the sandbox uses namespaces or Landlock, because these exist only on Linux.
func (s *Sandbox) try() (Report, error) {
	if s.mechanism != byNothing {
		return Report{}, errors.New("it exists only on Linux")
	}
	return Report{NotEnforced: allParts(&s.rules)}, nil
}

func (*Sandbox) start(c Command, stdio [3]*os.File, sys *syscall.SysProcAttr, join func(int), _ bool) (*os.Process, error) {
	process, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{Dir: c.Dir, Env: c.Env, Files: stdio[:], Sys: sys})
	if err != nil {
		return nil, err
	}
	join(process.Pid)
	return process, nil
}

func launch() int { return exitLauncher }

// inotifyHub is used only on Linux.
type inotifyHub struct{}

// starter is used only on Linux.
type starter struct{}

func serveStarts() int { return exitLauncher }
