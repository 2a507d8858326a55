package datadir

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// InUse reports whether another process uses a directory. A process uses the directory if its working directory, its
// program or one of its open files is in the directory, or if an argument of its command is a path in the directory.
// For processes of other users, InUse checks only the arguments.
func InUse(dir string) bool {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	folder, err := os.Stat(dir)
	if err != nil {
		return false
	}
	processes, _ := filepath.Glob("/proc/[1-9]*")
	return slices.ContainsFunc(processes, func(process string) bool {
		if filepath.Base(process) == strconv.Itoa(os.Getpid()) {
			return false
		}
		cwd, err := os.Stat(filepath.Join(process, "cwd")) // in a sandbox, the directory can have another path
		return err == nil && os.SameFile(cwd, folder) || hasOpen(process, dir) || hasArgument(process, dir)
	})
}

// hasOpen reports whether the working directory, the program or an open file of a process is in dir. process is the
// process's directory in /proc.
func hasOpen(process, dir string) bool {
	open, _ := filepath.Glob(filepath.Join(process, "fd", "*"))
	return slices.ContainsFunc(append(open, filepath.Join(process, "cwd"), filepath.Join(process, "exe")), func(link string) bool {
		path, err := os.Readlink(link)
		return err == nil && isIn(path, dir)
	})
}

func hasArgument(process, dir string) bool {
	line, _ := os.ReadFile(filepath.Join(process, "cmdline")) // empty if the process has ended
	return slices.ContainsFunc(bytes.Split(line, []byte{0}), func(arg []byte) bool { return isIn(string(arg), dir) })
}

// isIn reports whether path is dir or is inside dir.
func isIn(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == filepath.Separator)
}
