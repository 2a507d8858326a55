package bench

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// About says where, when and how a run was made.
type About struct {
	// CPU is the processor's model, and Cores the number of cores.
	CPU   string
	Cores int
	// Platform is the operating system and architecture, and Go the version of Go.
	Platform, Go string
	// Commit is what was measured, and Date when.
	Commit string
	Date   time.Time
	// Base is the commit that it was compared with; empty for none.
	Base string
	// Command is the command that repeats the run.
	Command string
	// Rounds and Duration are those of the run.
	Rounds   int
	Duration time.Duration
}

// Describe returns the description of a run that begins now.
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

// commit returns the commit of the checkout that a folder is in, and whether files differ from it.
func commit(ctx context.Context, dir string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", dir, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=, with changes").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
