// Command bench measures the number of calls per second that the mesh forwards, and writes a page with the results.
// `make bench` builds the mesh and runs this command.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/bench"
	"github.com/sluice-mesh/sluice/services/internal/app"
)

func main() {
	ctx, stop := app.Signals()
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:gocritic // the process ends, so stop is not needed
	}
}

// run makes the measurements. If the first argument is "echo", "proxy" or "lean", run instead runs that server of the
// benchmark.
func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "echo":
		return bench.Serve(ctx, args[1], bench.NewEcho())
	case len(args) == 3 && args[0] == "proxy":
		proxy, err := bench.NewProxy(args[2])
		if err != nil {
			return err
		}
		return bench.Serve(ctx, args[1], proxy)
	case len(args) == 3 && args[0] == "lean":
		return bench.Serve(ctx, args[1], bench.NewLean(args[2]))
	default:
		return measure(ctx, args)
	}
}

type options struct {
	bench.Config

	out string
}

// quickDefaults maps the names of flags to the values that -quick sets if the flags are not set on the command line.
var quickDefaults = map[string]string{"rounds": "2", "duration": "500ms", "out": ""}

func parse(args []string) (options, error) {
	opts := options{Config: bench.Config{Callers: []int{1, 32, 256}}}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&opts.Rounds, "rounds", 6, "how often every cell is measured")
	flags.DurationVar(&opts.Duration, "duration", 3*time.Second, "how long one measurement takes")
	flags.Func("cells", "the cells to measure, separated by commas, in addition to the floor (default all)", func(text string) error {
		opts.Cells = strings.Split(text, ",")
		return nil
	})
	flags.Func("callers", "the numbers of callers, separated by commas (default 1,32,256)", func(text string) (err error) {
		opts.Callers, err = counts(text)
		return err
	})
	flags.StringVar(&opts.Bin, "bin", "../bin", "the folder with the mesh's programs")
	flags.StringVar(&opts.Peers, "peers", "../.cache/peers", "the folder with the programs of other gateways; see make peers")
	flags.StringVar(&opts.Base, "base", "", "the folder with the programs of another commit to compare with; see make base")
	flags.StringVar(&opts.out, "out", "../docs/benchmarks.md", "the page to write")
	quick := flags.Bool("quick", false, "measure for about half a minute and write no page; other flags take precedence")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unknown argument %q: this command takes only flags", flags.Arg(0))
	}
	if *quick {
		setQuickDefaults(flags)
	}
	var err error
	opts.Self, err = os.Executable()
	return opts, err
}

// setQuickDefaults sets the flags that are not set on the command line to the values of a quick run.
func setQuickDefaults(flags *flag.FlagSet) {
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range quickDefaults {
		if !given[name] {
			_ = flags.Set(name, value) // the values are valid
		}
	}
}

func counts(text string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// measure makes the measurements and prints the report. It writes the report to the file only if the run is complete.
func measure(ctx context.Context, args []string) error {
	opts, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	about := bench.Describe(ctx, opts.Config, command(args))
	results, err := bench.Run(ctx, opts.Config, os.Stderr)
	if len(results.Samples) == 0 {
		return cmp.Or(err, errors.New("every measurement failed; the lines above say why"))
	}
	page := bench.Report(&results, about)
	if _, werr := os.Stdout.Write(page); werr != nil {
		return errors.Join(err, werr)
	}
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted: the results so far are printed above, and no page was written")
	case err != nil || opts.out == "":
		return err
	default:
		return os.WriteFile(opts.out, page, 0o644)
	}
}

// command returns the command line that repeats the run.
func command(args []string) string {
	if len(args) == 0 {
		return "make bench"
	}
	return fmt.Sprintf("make bench ARGS=%q", strings.Join(args, " "))
}
