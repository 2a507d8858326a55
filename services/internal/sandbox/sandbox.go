// Package sandbox starts programs that must not reach what is this program's own:
// its files, its processes, its terminal. The kernel holds them to it, from a
// launcher that is this program again: see [RunLauncher].
//
// Two ways hold. Namespaces hide what is to be hidden and nothing else: the
// program has mounts and processes of its own. Where none may be made, Landlock
// allows everything beside what is hidden; it knows no sockets that have a path and
// no modes of files, and nothing new can be made directly in a folder above one
// that is hidden.
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

// Mode says how much has to hold. The zero value is the strictest.
type Mode string

// Modes.
const (
	// Required starts nothing unless everything holds.
	Required Mode = ""
	// Auto holds as much as this system can.
	Auto Mode = "auto"
	// Off holds nothing.
	Off Mode = "off"
)

// Rules say what a program must not reach. All paths are absolute and clean; one
// that is not there is hidden once it is.
type Rules struct {
	// Mode says how much has to hold.
	Mode Mode
	// Secret are files and folders that are hidden whatever Read and Write say.
	Secret []string
	// Private are files and folders that are hidden unless Read or Write name them
	// or what is in them. One may lie in a secret folder.
	Private []string
	// Programs are files that may be read and run, but neither changed nor replaced.
	Programs []string
	// ReadOnly are files and folders that the program reads and can't change, such as other programs and files of the
	// system. What does not exist when the program starts is left out. "/" is everything that no other rule opens.
	ReadOnly []string
	// Work are folders that stay writable where they lie inside of a read-only folder.
	Work []string
	// Read and Write are files and folders that are reached although they are hidden:
	// private ones, and sockets. What Write names is writable although it is read only, with all that it holds.
	Read, Write []string
	// NoNetwork leaves the program without a network.
	NoNetwork bool
	// Home is the user's folder, which stays open. Where nothing new can be made in it
	// and it is a program's HOME, common caches are made before. Empty for none.
	Home string
}

// Command is a program to start.
type Command struct {
	// Path is the file, Args its arguments, the first of which is its name, and Env
	// all of its environment.
	Path string
	Args []string
	Env  []string
	// Dir is where it runs, an absolute path.
	Dir string
	// Own is the folder that it may use although it lies in one that is hidden; empty
	// for none.
	Own string
	// Read is a folder that it reads and can't change although it lies in one that is hidden; empty for none.
	Read string
}

// Launcher is how this program is started again so that it becomes the launcher:
// [RunLauncher] returns it. The zero value is no launcher.
type Launcher struct {
	argv []string
	// notices watch what is hidden for all programs.
	notices *notices
	// starter starts it in namespaces.
	starter *starter
}

const (
	// word makes this program the launcher.
	word = "stdio-launch"
	// starterWord makes this program a starter.
	starterWord = "stdio-starter"
)

// RunLauncher becomes the launcher where the program was started as one, and then
// does not return. A main function calls it before anything else; what it returns is
// the proof that it did.
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

// launcherArgs are the arguments by which this program is started again as the launcher.
func launcherArgs() []string { return []string{"/proc/self/exe", word} }

// A Sandbox starts programs under its rules. It is safe for concurrent use.
type Sandbox struct {
	launcher Launcher
	rules    Rules
	by       mechanism
	holds    Report
}

// mechanism is what the kernel is asked for.
type mechanism string

const (
	byNothing    mechanism = "nothing"
	byNamespaces mechanism = "namespaces"
	byLandlock   mechanism = "Landlock"
)

// Nothing is a sandbox that holds nothing.
func Nothing() *Sandbox {
	return &Sandbox{rules: Rules{Mode: Off}, by: byNothing, holds: Report{Why: offWhy}}
}

// New finds out what this system holds of the rules, by trying it. Errors: rules
// that contradict themselves, and those of mode [Required] that do not hold.
func New(launcher Launcher, rules Rules) (*Sandbox, error) {
	if rules.Mode == Off {
		return Nothing(), nil
	}
	if err := rules.Check(); err != nil {
		return nil, err
	}
	return newBy(launcher, rules, byNamespaces, byLandlock, byNothing)
}

// newBy takes the first mechanism that works.
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
			return nil, fmt.Errorf("not everything holds that mode required asks for: %s", report)
		}
		return s, nil
	}
	return nil, fmt.Errorf("no program can be started: %s", strings.Join(why, "; "))
}

// Holds is what the kernel holds of the rules.
func (s *Sandbox) Holds() Report { return s.holds }

// Start starts a program with the given standard input, output and error, at the
// head of a process group. What goes wrong in the launcher is written to that
// standard error, and the launcher exits with 126.
func (s *Sandbox) Start(c Command, stdio [3]*os.File, sys *syscall.SysProcAttr) (*os.Process, error) {
	return s.StartJoined(c, stdio, sys, func(int) {})
}

// StartJoined is [Sandbox.Start] with a function that gets the number of the process before the program runs in it, so
// that whatever holds for that process then holds for all that the program starts. Where the sandbox is off the program runs already by then, since a moment.
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

// Check finds what Read and Write name and nothing opens. The error begins with the
// one of the two.
func (r *Rules) Check() error {
	for _, path := range r.Read {
		if err := r.mayOpen(path); err != nil {
			return fmt.Errorf("read: %w", err)
		}
	}
	for _, path := range r.Write { // a folder may hold what is hidden, for it may hold a program beside that
		if err := r.MayOwn(path); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}

// mayOpen says why a path is not opened: it must hold nothing that is hidden, for
// what is to be opened is named by itself.
func (r *Rules) mayOpen(path string) error {
	if err := r.MayOwn(path); err != nil {
		return err
	}
	for _, path := range withReal(path) {
		for _, hidden := range slices.Concat(r.Secret, r.Private) {
			for _, hidden := range withReal(hidden) {
				if isBelow(hidden, path) && hidden != path {
					return fmt.Errorf("%s holds %s, which stays hidden: name what is beside it", path, hidden)
				}
			}
		}
	}
	return nil
}

// MayOwn says why a program may not have a folder for its own: it is secret.
func (r *Rules) MayOwn(path string) error {
	for _, path := range withReal(path) {
		secret, private := deepest(path, r.Secret), deepest(path, r.Private)
		if secret != "" && len(secret) >= len(private) {
			return fmt.Errorf("%s is or lies in %s, which is secret and stays hidden", path, secret)
		}
	}
	return nil
}

// deepest returns the longest of the folders that a path lies in; empty for none.
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

// withReal returns a path and, where a link makes it another, that one.
func withReal(path string) []string {
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		return []string{path, real}
	}
	return []string{path}
}

// isBelow reports whether a clean path is folder or lies in it.
func isBelow(path, folder string) bool {
	rest, ok := strings.CutPrefix(path, folder)
	return ok && (rest == "" || rest[0] == filepath.Separator || folder == string(filepath.Separator))
}
