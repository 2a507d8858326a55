package sandbox

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
)

// errorPrefix is the prefix of the launcher's error messages.
const errorPrefix = "sluice could not start the program: "

// launch is the main function of the launcher. It restricts access and drops privileges. In namespaces, it then starts
// the program, waits until the program ends, and returns the exit code. With Landlock, or if no mechanism works, it
// replaces itself with the program.
func launch() int {
	// Privileges belong to threads. The thread that drops its privileges must also start the program.
	runtime.LockOSThread()
	code, err := runOrder()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s%v\n", errorPrefix, err)
		return exitLauncher
	}
	return code
}

func runOrder() (int, error) {
	// Inherited descriptors are closed when the program is executed. They can't be closed now, because the Go runtime
	// uses some of them.
	if err := unix.CloseRange(orderFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 0, fmt.Errorf("close inherited descriptors: %w", err)
	}
	var o order
	file := os.NewFile(orderFD, "order")
	if err := json.UnmarshalRead(file, &o); err != nil {
		return 0, fmt.Errorf("read the order: %w", err)
	}
	_ = file.Close() // the file was only read
	var report Report
	var rehide func()
	var err error
	switch o.By {
	case byNamespaces:
		report, rehide, err = enterNamespaces(&o)
	case byLandlock:
		report, err = enterLandlock(&o)
	case byNothing:
		report = Report{NotEnforced: allParts(&o.Rules)}
	default:
		err = fmt.Errorf("unknown mechanism %q", o.By)
	}
	if err != nil {
		return 0, err
	}
	if err := dropPrivileges(o.AsRoot); err != nil {
		return 0, err
	}
	switch {
	case o.Try:
		return 0, json.MarshalWrite(os.Stdout, report)
	case o.By == byNamespaces:
		return startAndWait(&o.Command, rehide)
	default:
		return 0, execProgram(&o.Command)
	}
}

// execProgram replaces the launcher with the program, in the same process.
func execProgram(c *Command) error {
	if err := os.Chdir(c.Dir); err != nil {
		return fmt.Errorf("enter its folder: %w", err)
	}
	err := syscall.Exec(c.Path, c.Args, c.Env) //nolint:gosec // the command comes from the configuration
	return fmt.Errorf("run %s: %w", c.Path, err)
}

// startAndWait starts the program and waits until it ends. The launcher is the first process of the namespace.
// Therefore it must also wait for orphaned processes, and all remaining processes are killed when it exits.
// startAndWait closes its own copies of the program's descriptors.
func startAndWait(c *Command, rehide func()) (int, error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP) // ignored here, because the program receives these signals too
	program, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{Dir: c.Dir, Env: c.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", c.Path, err)
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("close the pipes: %w", err)
	}
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return 0, fmt.Errorf("close the pipes: %w", err)
		}
	}
	go rehide()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return exitLauncher, nil //nolint:nilerr // no process is left
		case pid == program.Pid && status.Exited():
			return status.ExitStatus(), nil
		case pid == program.Pid && status.Signaled():
			const bySignal = 128 // like shells
			return bySignal + int(status.Signal()), nil
		}
	}
}
