package stdio

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxInstall limits how long a start waits while another server installs the same package. It is equal to the maximum
	// time that an operator can configure for an installation.
	maxInstall = 30 * time.Minute
	// maxInstalls is the maximum number of packages that the gateway installs at the same time. It is small because an
	// installation loads the network, the disk and the processor.
	maxInstalls = 2
)

// Installs allows only one installation of each package at a time. Otherwise, package managers that install the same
// package concurrently would corrupt each other's caches. It also limits how many packages the gateway installs at the
// same time. The zero value is ready to use. It is safe for concurrent use.
type Installs struct {
	mu      sync.Mutex
	running map[string]*install
	// used is the number of slots in use. queue contains the slots that are not granted yet, oldest first.
	used  int
	queue []*place
}

// A place is a slot for one installation by the gateway. granted is closed when the installation may begin.
type place struct{ granted chan struct{} }

func (p *place) isGranted() bool {
	select {
	case <-p.granted:
		return true
	default:
		return false
	}
}

// enqueue returns a slot. The slot is granted when all earlier slots have been granted and fewer than maxInstalls slots
// are in use. The caller must call leave.
func (i *Installs) enqueue() *place {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := &place{make(chan struct{})}
	i.queue = append(i.queue, p)
	i.grant()
	return p
}

// leave releases a slot, even if the slot was not granted.
func (i *Installs) leave(p *place) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if p.isGranted() {
		i.used--
	} else {
		i.queue = slices.DeleteFunc(i.queue, func(other *place) bool { return other == p })
	}
	i.grant()
}

// grant grants the oldest slots in the queue while fewer than maxInstalls are in use. The caller must hold the lock.
func (i *Installs) grant() {
	for i.used < maxInstalls && len(i.queue) > 0 {
		close(i.queue[0].granted)
		i.queue = i.queue[1:]
		i.used++
	}
}

// install is the lock for installations of one package.
type install struct {
	turn chan struct{}
	// users is the number of callers that hold the lock or wait for it.
	users int
}

// wait waits for a package's lock, and returns a function that releases the lock. An empty name needs no lock. The
// error is the cause of ctx, or says that maxInstall has passed.
func (i *Installs) wait(ctx context.Context, name string) (done func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	own := i.addWaiter(name)
	timer := time.NewTimer(maxInstall)
	defer timer.Stop()
	select {
	case own.turn <- struct{}{}:
		return sync.OnceFunc(func() {
			<-own.turn
			i.removeWaiter(name)
		}), nil
	case <-timer.C:
		err = fmt.Errorf("another installation of %s has not ended within %s", name, maxInstall)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	i.removeWaiter(name)
	return nil, err
}

func (i *Installs) addWaiter(name string) *install {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running == nil {
		i.running = make(map[string]*install)
	}
	if i.running[name] == nil {
		i.running[name] = &install{turn: make(chan struct{}, 1)}
	}
	i.running[name].users++
	return i.running[name]
}

func (i *Installs) removeWaiter(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running[name].users--; i.running[name].users == 0 {
		delete(i.running, name)
	}
}

// selfInstallers contains the programs that install a package before they run it. The value of a program lists the
// arguments with which it installs the package. If the value is empty, the program installs the package with any
// arguments.
var selfInstallers = map[string][][]string{
	"npx": nil, "pnpx": nil, "bunx": nil, "uvx": nil,
	"npm": {{"exec"}, {"x"}}, "pnpm": {{"dlx"}}, "yarn": {{"dlx"}}, "bun": {{"x"}}, "pipx": {{"run"}}, "uv": {{"tool", "run"}, {"run"}},
}

// packageFlags are the flags that name the package. They are used if the names of the package and of the program in it
// differ.
var packageFlags = []string{"-p", "--package", "--from", "--spec", "--with"}

// packageOf returns the names of the program and the package if the command may install a package when it starts. It
// returns "" if the command installs no package.
func packageOf(command []string) string {
	program, args := selfInstaller(command)
	if program == "" {
		return ""
	}
	return program + " " + firstPackage(args)
}

// selfInstaller returns the program in a command that may install a package when it starts, and the arguments that name
// the package. The program is empty if the command installs no package.
func selfInstaller(command []string) (program string, args []string) {
	program = strings.TrimSuffix(strings.TrimSuffix(filepath.Base(command[0]), ".exe"), ".cmd")
	forms, is := selfInstallers[program]
	if !is {
		return "", nil
	}
	args = command[1:]
	for _, words := range forms {
		if len(args) >= len(words) && slices.Equal(args[:len(words)], words) {
			return program, args[len(words):]
		}
	}
	if forms != nil {
		return "", nil
	}
	return program, args
}

// SelfInstaller returns the name of the program, such as uvx, if a command installs a package whenever it starts. It
// returns "" if the command installs no package. It also returns "" if the command installs the package into a
// project's directory, as `uv run` does.
func SelfInstaller(command []string) string {
	if len(command) == 0 {
		return ""
	}
	program, _ := selfInstaller(command)
	if program == "uv" && command[1] == "run" {
		return ""
	}
	return program
}

// firstPackage returns the package in the first flag of args that is one of packageFlags. If there is no such flag, it
// returns the first argument that is not a flag.
func firstPackage(args []string) string {
	first := ""
	for i, arg := range args {
		name, value, has := strings.Cut(arg, "=")
		switch {
		case slices.Contains(packageFlags, name) && has:
			return value
		case slices.Contains(packageFlags, name) && i+1 < len(args):
			return args[i+1]
		case arg == "--":
			if i+1 < len(args) && first == "" {
				return args[i+1]
			}
		case first == "" && !strings.HasPrefix(arg, "-"):
			first = arg
		}
	}
	return first
}
