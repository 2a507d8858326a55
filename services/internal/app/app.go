// Package app contains the code for flags, configuration, logs, telemetry, signals and exit codes that the programs of
// all services of the mesh share. It is the only package that reads the environment.
package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// Process contains the values that a program passes to the constructor of its service, such as the configuration and
// the log.
type Process struct {
	// File is the configuration of all services of the mesh.
	File *config.File
	// Env looks up environment variables for secrets.
	Env config.Env
	// Reload reads the configuration again, so that some values can change while the process is running. If Reload is nil,
	// the configuration is read only once.
	Reload func() (*config.File, error)
	Log    *slog.Logger
	// Telemetry creates traces and metrics.
	Telemetry *telemetry.Telemetry
	// Version is the version of this build.
	Version string
}

// Env looks up an environment variable of this process.
func Env(name string) (string, bool) { return os.LookupEnv(name) }

// Environ returns the environment variables of this process, for programs that it starts.
func Environ() []string { return os.Environ() }

// repeatedWithin is how long after the first signal further signals are ignored. On Ctrl-C, the terminal sends SIGINT
// to this program and to the launcher of the npm package, which forwards the signal. This program therefore receives
// two signals.
const repeatedWithin = time.Second

// Signals returns a context that is cancelled by SIGINT or SIGTERM. The signal handler is removed a second after the
// first signal, so a later signal terminates the process.
func Signals() (context.Context, context.CancelFunc) { return signals(repeatedWithin) }

func signals(repeated time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(repeated, stop) })
	return ctx, stop
}

// NewLog returns a structured log that writes records of at least the given level to w. The format is text if text is
// true, and JSON otherwise. Control characters in the records are escaped, so they have no effect on a terminal.
func NewLog(w io.Writer, service string, text bool, level slog.Level) *slog.Logger {
	w = safetext.NewWriter(w)
	opts := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewJSONHandler(w, opts)
	if text {
		h = slog.NewTextHandler(w, opts)
	}
	return slog.New(h).With("service", service)
}

type options struct {
	config  string
	level   string
	probe   bool
	version bool
}

// run parses the flags of a service's program, passes them to do, and returns the exit code. If do returns an error,
// run prints it.
func run(service string, args []string, do func(context.Context, options) error) int {
	var opts options
	flags := flag.NewFlagSet(service, flag.ContinueOnError)
	flags.StringVar(&opts.config, "config", "", "the configuration file; the default is the value of SLUICE_CONFIG")
	flags.StringVar(&opts.level, "log-level", "", "the lowest level that is logged: debug, info, warn or error; the default is the configuration's log.level")
	flags.BoolVar(&opts.probe, "probe", false, "ask the running service whether it serves, and exit 0 if it does")
	flags.BoolVar(&opts.version, "version", false, "print the version and exit")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "%s serves the %s role of the Sluice mesh.\n\nUsage: %s --config FILE\n\n", service, service, service)
		flags.PrintDefaults()
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(os.Stderr, "%s: %q is not understood; see %s --help\n", service, flags.Arg(0), service)
		return 2
	}
	if _, err := config.ParseLogLevel(opts.level); opts.level != "" && err != nil {
		fmt.Fprintf(os.Stderr, "%s: --log-level: %v\n", service, err)
		return 2
	}
	if opts.version {
		fmt.Println(Version())
		return 0
	}
	if opts.config == "" {
		opts.config, _ = Env("SLUICE_CONFIG")
	}
	ctx, stop := Signals()
	defer stop()
	if err := do(ctx, opts); err != nil {
		fmt.Fprintf(safetext.NewWriter(os.Stderr), "%s: %v\n", service, err)
		return 1
	}
	return 0
}
