package sandbox

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sockets returns the sockets on which programs of this user and of root listen, and the directory that contains this
// user's sockets. Services such as D-Bus, Docker and tmux could start programs outside the sandbox.
func sockets(o *order) []string {
	found := make(map[string]bool)
	if raw, err := os.ReadFile("/proc/self/net/unix"); err == nil {
		for line := range strings.Lines(string(raw)) {
			const pathColumn = 7
			if fields := strings.Fields(line); len(fields) == pathColumn+1 && filepath.IsAbs(fields[pathColumn]) {
				found[fields[pathColumn]] = true
			}
		}
	}
	const deep, many = 4, 10_000
	n := 0
	_ = filepath.WalkDir("/run", func(path string, d fs.DirEntry, err error) error {
		n++
		switch {
		case err != nil || n > many || d.IsDir() && strings.Count(path, "/") > deep:
			return fs.SkipDir
		case d.Type()&fs.ModeSocket != 0:
			found[path] = true
		}
		return nil
	})
	var out []string
	for path := range found {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Lstat(real, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK || unix.Access(real, unix.W_OK) != nil {
			continue
		}
		if st.Uid == 0 || int(st.Uid) == os.Geteuid() {
			out = append(out, real)
		}
	}
	runtime := "/run/user/" + strconv.Itoa(os.Geteuid())
	if info, err := os.Lstat(runtime); err == nil && info.IsDir() && !containsProgram(runtime, &o.Command) {
		out = append(out, runtime)
	}
	return out
}

// containsProgram reports whether a directory contains a command's program or its working directory.
func containsProgram(dir string, c *Command) bool {
	return isBelow(c.Dir, dir) || isBelow(c.Path, dir)
}

// devices returns the devices from which hidden data on disk or in memory could be read. These are all disks and, for
// root, every device that is not accessible to all users.
func devices(asRoot bool) []string {
	var out []string
	_ = filepath.WalkDir("/dev", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil, path == "/dev/pts", path == "/dev/shm", path == "/dev/mqueue":
			return fs.SkipDir
		case d.Type()&fs.ModeDevice == 0:
			return nil
		}
		info, err := d.Info()
		const everybody = 0o006
		if err == nil && (d.Type()&fs.ModeCharDevice == 0 || asRoot && info.Mode()&everybody != everybody) {
			out = append(out, path)
		}
		return nil
	})
	return out
}

// terminals returns the directory of terminals, in which people may type tokens.
func terminals() []string {
	if info, err := os.Lstat("/dev/pts"); err != nil || !info.IsDir() {
		return nil
	}
	return []string{"/dev/pts"}
}
