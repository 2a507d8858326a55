package bench

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// About describes the machine, the time and the configuration of a run.
type About struct {
	// CPU is the model of the processor. Cores is the number of its cores.
	CPU   string
	Cores int
	// Platform is the operating system and the architecture. Go is the version of Go.
	Platform, Go string
	// Commit is the measured commit. Date is the start time of the run.
	Commit string
	Date   time.Time
	// Base is the base commit with which the mesh is compared. It is empty if there is no comparison.
	Base string
	// Command is the command line that repeats the run.
	Command string
	// Rounds and Duration have the same meaning as in [Config].
	Rounds   int
	Duration time.Duration
}

// Describe returns the description of a run that begins now. The given command line repeats the run.
func Describe(ctx context.Context, cfg Config, command string) About {
	about := About{
		CPU: cpuModel(), Cores: runtime.NumCPU(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(),
		Commit: commit(ctx, "."), Date: time.Now().UTC(), Command: command,
		Rounds: cfg.Rounds, Duration: cfg.Duration,
	}
	if cfg.Base != "" {
		about.Base = commit(ctx, cfg.Base)
	}
	return about
}

func cpuModel() string {
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// commit returns the commit of the Git checkout that contains the given directory. If the checkout has uncommitted
// changes, commit appends ", with changes".
func commit(ctx context.Context, dir string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", dir, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=, with changes").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
