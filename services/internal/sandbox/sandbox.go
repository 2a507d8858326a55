// Package sandbox starts programs without access to the files, processes and terminal of this program. A launcher,
// which is a second process of this program, sets up the rules, and the kernel enforces them. See [RunLauncher].
//
// There are two mechanisms, namespaces and Landlock. With namespaces, the program has its own mounts and processes, and
// only the hidden paths are missing. If namespaces can't be created, Landlock allows access to all files except the
// hidden paths. Landlock does not restrict sockets that have a path, or changes to file modes. With Landlock, no files
// can be created directly in a directory that contains a hidden path.
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

// Mode specifies which rules must be enforced. The zero value is the strictest mode.
type Mode string

const (
	// Required starts a program only if all rules are enforced.
	Required Mode = ""
	// Auto enforces those rules that this system can enforce.
	Auto Mode = "auto"
	// Off enforces no rules.
	Off Mode = "off"
)

// Rules describes what a program may access. All paths are absolute and clean. A path that must be hidden but does not
// exist yet is hidden as soon as it is created.
type Rules struct {
	// Mode specifies which rules must be enforced.
	Mode Mode
	// Secret lists files and directories that are hidden even if Read or Write name them.
	Secret []string
	// Private lists files and directories that are hidden unless Read or Write names them or paths in them. They may be
	// inside a secret directory.
	Private []string
	// Programs lists files that the program can read and run, but neither change nor replace.
	Programs []string
	// ReadOnly lists files and directories that the program can read but not change, for example other programs and
	// system files. Paths that do not exist when the program starts are ignored. "/" means all files that no other rule
	// makes writable.
	ReadOnly []string
	// Work lists directories that stay writable inside a read-only directory.
	Work []string
	// Read and Write list private paths and sockets that the program may use although they are hidden by default. Paths
	// in Write, and everything below them, are also writable, even if another rule makes them read-only.
	Read, Write []string
	// NoNetwork is true if the program can't access the network.
	NoNetwork bool
	// Home is the user's home directory, which stays accessible. It is empty if there is none. If it is also the
	// program's HOME and the program can't create files in it, the common cache directories are created before the
	// program starts.
	Home string
}

// Command is a program to start.
type Command struct {
	// Path is the program's file. Args contains the arguments, of which the first is the program's name. Env is the whole
	// environment.
	Path string
	Args []string
	Env  []string
	// Dir is the absolute path of the working directory.
	Dir string
	// Own is a directory that the program may use even if it is inside a hidden directory. It is empty if there is no
	// such directory.
	Own string
	// Read is a directory that the program can read but not change, even if it is inside a hidden directory. It is
	// empty if there is no such directory.
	Read string
}

// Launcher starts another process of this program, which runs as the launcher. [RunLauncher] returns a Launcher. The
// zero value can't start a launcher.
type Launcher struct {
	argv    []string
	notices *inotifyHub
	starter *starter
}

const (
	// launcherArg is the argument that makes this program run as the launcher.
	launcherArg = "stdio-launch"
	// starterArg is the argument that makes this program run as a starter.
	starterArg = "stdio-starter"
)

// RunLauncher runs the launcher if this process was started as a launcher. In that case it does not return. A main
// function must call it before anything else. The returned value proves that main has called it.
func RunLauncher() Launcher {
	self := Launcher{launcherArgs(), new(inotifyHub), new(starter)}
	if len(os.Args) == len(self.argv) {
		switch os.Args[1] {
		case launcherArg:
			os.Exit(launch())
		case starterArg:
			os.Exit(serveStarts())
		}
	}
	return self
}

func launcherArgs() []string { return []string{"/proc/self/exe", launcherArg} }

// A Sandbox starts programs under given rules. It is safe for concurrent use.
type Sandbox struct {
	launcher  Launcher
	rules     Rules
	mechanism mechanism
	report    Report
}

type mechanism string

const (
	byNothing    mechanism = "nothing"
	byNamespaces mechanism = "namespaces"
	byLandlock   mechanism = "Landlock"
)

// Nothing returns a sandbox that enforces no rules.
func Nothing() *Sandbox {
	return &Sandbox{rules: Rules{Mode: Off}, mechanism: byNothing, report: Report{Why: offReason}}
}

// New returns a sandbox. It tests which rules this system can enforce. It returns an error if the rules contradict each
// other. In mode [Required], it also returns an error if not all rules can be enforced.
func New(launcher Launcher, rules Rules) (*Sandbox, error) {
	if rules.Mode == Off {
		return Nothing(), nil
	}
	if err := rules.Check(); err != nil {
		return nil, err
	}
	return newWith(launcher, rules, byNamespaces, byLandlock, byNothing)
}

// newWith returns a sandbox with the first mechanism that works.
func newWith(launcher Launcher, rules Rules, ways ...mechanism) (*Sandbox, error) {
	if len(launcher.argv) == 0 {
		return nil, errors.New("a sandbox needs a launcher")
	}
	var why []string
	for _, by := range ways {
		s := &Sandbox{launcher: launcher, rules: rules, mechanism: by}
		report, err := s.try()
		if err != nil {
			why = append(why, fmt.Sprintf("no %s: %v", by, err))
			continue
		}
		report.Why = strings.Join(why, "; ")
		s.report = report
		if rules.Mode == Required && !report.isComplete() {
			return nil, fmt.Errorf("not everything that mode required asks for can be enforced: %s", report)
		}
		return s, nil
	}
	return nil, fmt.Errorf("no program can be started: %s", strings.Join(why, "; "))
}

// Report returns a description of the rules that the kernel enforces.
func (s *Sandbox) Report() Report { return s.report }

// Start starts a program with the given standard input, output and error, as the leader of a process group. If the
// launcher fails, it writes a message to the given standard error and exits with code 126.
func (s *Sandbox) Start(c Command, stdio [3]*os.File, sys *syscall.SysProcAttr) (*os.Process, error) {
	return s.StartJoined(c, stdio, sys, func(int) {})
}

// StartJoined is like [Sandbox.Start], but calls join with the process id before the program runs. Limits that join
// sets for the process also apply to all processes that the program starts. If the sandbox is off, StartJoined calls
// join directly after it has started the program.
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

// Check returns an error if Read or Write contains a path to which access can't be allowed. The error begins with the
// name of the field in lower case.
func (r *Rules) Check() error {
	for _, path := range r.Read {
		if err := r.mayOpen(path); err != nil {
			return fmt.Errorf("read: %w", err)
		}
	}
	for _, path := range r.Write { // a writable directory can contain hidden paths, because it can also contain a program
		if err := r.CheckAccess(path); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}

// mayOpen returns an error if access to a path can't be allowed, because the path is secret or contains hidden paths.
// If a directory contains hidden paths, the rules must name the other paths in it separately.
func (r *Rules) mayOpen(path string) error {
	if err := r.CheckAccess(path); err != nil {
		return err
	}
	for _, path := range withReal(path) {
		for _, hidden := range slices.Concat(r.Secret, r.Private) {
			for _, hidden := range withReal(hidden) {
				if isBelow(hidden, path) && hidden != path {
					return fmt.Errorf("%s contains %s, which stays hidden: name the other paths in it", path, hidden)
				}
			}
		}
	}
	return nil
}

// CheckAccess returns an error if a program may not access a path because the path is secret.
func (r *Rules) CheckAccess(path string) error {
	for _, path := range withReal(path) {
		secret, private := deepest(path, r.Secret), deepest(path, r.Private)
		if secret != "" && len(secret) >= len(private) {
			return fmt.Errorf("%s is or lies in %s, which is secret and stays hidden", path, secret)
		}
	}
	return nil
}

// deepest returns the longest of the directories in dirs that contain the given path. If none of them contains the
// path, it returns "".
func deepest(path string, dirs []string) string {
	found := ""
	for _, dir := range dirs {
		for _, dir := range withReal(dir) {
			if isBelow(path, dir) && len(dir) > len(found) {
				found = dir
			}
		}
	}
	return found
}

// withReal returns a path and, if the path contains links, its real path.
func withReal(path string) []string {
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		return []string{path, real}
	}
	return []string{path}
}

// isBelow reports whether a clean path is dir or is inside dir.
func isBelow(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == filepath.Separator || dir == string(filepath.Separator))
}
