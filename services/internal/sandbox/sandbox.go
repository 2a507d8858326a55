// Package sandbox starts programs without access to this program's own files, processes and terminal. The kernel
// enforces the rules, set up by a launcher, which is this program started again: see [RunLauncher]. There are two
// mechanisms. Namespaces hide exactly the hidden paths: the program has its own mounts and processes. If namespaces
// can't be created, Landlock allows everything except the hidden paths; it does not cover sockets with a path and
// modes of files, and with it nothing new can be created directly in a folder above a hidden one.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Mode says how much must be enforced. The zero value is the strictest.
type Mode string

// These are the modes.
const (
	// Required starts no program unless everything is enforced.
	Required Mode = ""
	// Auto enforces as much as this system can.
	Auto Mode = "auto"
	// Off enforces nothing.
	Off Mode = "off"
)

// Rules say what a program must not access. All paths are absolute and clean; a missing path is hidden when it
// appears.
type Rules struct {
	// Mode says how much must be enforced.
	Mode Mode
	// Secret are files and folders that are hidden even if Read or Write name them.
	Secret []string
	// Private are files and folders that are hidden unless Read or Write name them or paths in them. They may be
	// inside a secret folder.
	Private []string
	// Programs are files that may be read and run, but neither changed nor replaced.
	Programs []string
	// ReadOnly are files and folders that the program can read but not change, such as other programs and files of the
	// system. Paths that do not exist when the program starts are ignored. "/" means everything that no other rule
	// opens.
	ReadOnly []string
	// Work are folders that stay writable inside a read-only folder.
	Work []string
	// Read and Write are hidden files and folders to open: private ones, and sockets. Paths of Write are writable with
	// everything in them, even if they are read-only otherwise.
	Read, Write []string
	// NoNetwork starts the program without a network.
	NoNetwork bool
	// Home is the user's folder, which stays open. If nothing new can be created in it and it is a program's HOME,
	// common cache folders are created before. Empty for none.
	Home string
}

// Command is a program to start.
type Command struct {
	// Path is the file, Args are its arguments, of which the first is its name, and Env is its whole environment.
	Path string
	Args []string
	Env  []string
	// Dir is its working folder, an absolute path.
	Dir string
	// Own is a folder that the program may use although it is inside a hidden one; empty for none.
	Own string
	// Read is a folder that the program can read but not change although it is inside a hidden one; empty for none.
	Read string
}

// Launcher says how to start this program again as the launcher: [RunLauncher] returns it. The zero value can't start
// one.
type Launcher struct {
	argv []string
	// notices watch hidden paths for all programs.
	notices *notices
	// starter starts the launcher in namespaces.
	starter *starter
}

const (
	// word is the argument that makes this program the launcher.
	word = "stdio-launch"
	// starterWord is the argument that makes this program a starter.
	starterWord = "stdio-starter"
)

// RunLauncher runs the launcher if the program was started as one, and then does not return. A main function must
// call it first; the returned value proves that it did.
func RunLauncher() Launcher {
	self := Launcher{launcherArgs(), new(notices), new(starter)}
	if len(os.Args) == len(self.argv) {
		switch os.Args[1] {
		case word:
			os.Exit(launch())
		case starterWord:
			os.Exit(serveStarts())
		}
	}
	return self
}

// launcherArgs returns the arguments that start this program as the launcher.
func launcherArgs() []string { return []string{"/proc/self/exe", word} }

// A Sandbox starts programs under its rules. It is safe for concurrent use.
type Sandbox struct {
	launcher Launcher
	rules    Rules
	by       mechanism
	holds    Report
}

// mechanism is the kernel's mechanism.
type mechanism string

const (
	byNothing    mechanism = "nothing"
	byNamespaces mechanism = "namespaces"
	byLandlock   mechanism = "Landlock"
)

// Nothing returns a sandbox that enforces nothing.
func Nothing() *Sandbox {
	return &Sandbox{rules: Rules{Mode: Off}, by: byNothing, holds: Report{Why: offWhy}}
}

// New finds out which rules this system can enforce, by trying. It returns an error if the rules contradict each
// other, and in mode [Required] if not all of them can be enforced.
func New(launcher Launcher, rules Rules) (*Sandbox, error) {
	if rules.Mode == Off {
		return Nothing(), nil
	}
	if err := rules.Check(); err != nil {
		return nil, err
	}
	return newBy(launcher, rules, byNamespaces, byLandlock, byNothing)
}

// newBy uses the first mechanism that works.
func newBy(launcher Launcher, rules Rules, ways ...mechanism) (*Sandbox, error) {
	if len(launcher.argv) == 0 {
		return nil, errors.New("a sandbox needs a launcher")
	}
	var why []string
	for _, by := range ways {
		s := &Sandbox{launcher: launcher, rules: rules, by: by}
		report, err := s.try()
		if err != nil {
			why = append(why, fmt.Sprintf("no %s: %v", by, err))
			continue
		}
		report.Why = strings.Join(why, "; ")
		s.holds = report
		if rules.Mode == Required && !report.whole() {
			return nil, fmt.Errorf("not everything that mode required asks for can be enforced: %s", report)
		}
		return s, nil
	}
	return nil, fmt.Errorf("no program can be started: %s", strings.Join(why, "; "))
}

// Holds reports which rules the kernel enforces.
func (s *Sandbox) Holds() Report { return s.holds }

// Start starts a program with the given standard input, output and error, as the leader of a process group. The
// launcher writes its errors to that standard error, and then exits with 126.
func (s *Sandbox) Start(c Command, stdio [3]*os.File, sys *syscall.SysProcAttr) (*os.Process, error) {
	return s.StartJoined(c, stdio, sys, func(int) {})
}

// StartJoined is [Sandbox.Start] with a function that gets the process id before the program runs, so that limits for
// that process apply to everything that the program starts. If the sandbox is off, the program already runs for a
// moment.
func (s *Sandbox) StartJoined(c Command, stdio [3]*os.File, sys *syscall.SysProcAttr, join func(pid int)) (*os.Process, error) {
	if s.rules.Mode != Off {
		return s.start(c, stdio, sys, join, false)
	}
	process, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{Dir: c.Dir, Env: c.Env, Files: stdio[:], Sys: sys})
	if err != nil {
		return nil, err
	}
	join(process.Pid)
	return process, nil
}

// Check returns an error if Read or Write contain a path that can't be opened. The error begins with the name of the
// field in lower case.
func (r *Rules) Check() error {
	for _, path := range r.Read {
		if err := r.mayOpen(path); err != nil {
			return fmt.Errorf("read: %w", err)
		}
	}
	for _, path := range r.Write { // a folder may contain hidden paths, because it may also contain a program
		if err := r.MayOwn(path); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}

// mayOpen returns why a path can't be opened: it is secret, or it contains hidden paths, which have to be named
// themselves.
func (r *Rules) mayOpen(path string) error {
	if err := r.MayOwn(path); err != nil {
		return err
	}
	for _, path := range withReal(path) {
		for _, hidden := range slices.Concat(r.Secret, r.Private) {
			for _, hidden := range withReal(hidden) {
				if isBelow(hidden, path) && hidden != path {
					return fmt.Errorf("%s holds %s, which stays hidden: name the other paths in it", path, hidden)
				}
			}
		}
	}
	return nil
}

// MayOwn returns an error if a program may not have a path because it is secret.
func (r *Rules) MayOwn(path string) error {
	for _, path := range withReal(path) {
		secret, private := deepest(path, r.Secret), deepest(path, r.Private)
		if secret != "" && len(secret) >= len(private) {
			return fmt.Errorf("%s is or lies in %s, which is secret and stays hidden", path, secret)
		}
	}
	return nil
}

// deepest returns the longest of the folders that contain a path; empty for none.
func deepest(path string, folders []string) string {
	found := ""
	for _, folder := range folders {
		for _, folder := range withReal(folder) {
			if isBelow(path, folder) && len(folder) > len(found) {
				found = folder
			}
		}
	}
	return found
}

// withReal returns a path and, if links make it another, its real path.
func withReal(path string) []string {
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		return []string{path, real}
	}
	return []string{path}
}

// isBelow reports whether a clean path is folder or inside it.
func isBelow(path, folder string) bool {
	rest, ok := strings.CutPrefix(path, folder)
	return ok && (rest == "" || rest[0] == filepath.Separator || folder == string(filepath.Separator))
}
