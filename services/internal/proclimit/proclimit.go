// Package proclimit limits the tasks and the memory of child processes, each together with all its descendants. On
// Linux the kernel enforces the limits if this process can create control groups (cgroups, version 1 or 2). Otherwise
// the descendants are counted at intervals, and the caller ends processes that exceed a limit.
package proclimit

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// These are the names of limits in [ExceededError].
const (
	Tasks  = "tasks"
	Memory = "memory"
)

// OOMScore is the oom_score_adj of processes in a group. The kernel ends a process with a higher score first; the
// range is -1000 to 1000, and 0 is the default.
const OOMScore = 800

// CheckEvery is the interval at which callers should check a group.
const CheckEvery = 100 * time.Millisecond

// Limits are those of one process with all its descendants. A zero value is no limit; callers set both.
type Limits struct {
	// Tasks is the maximum number of processes and threads at a time.
	Tasks int
	// Memory is the maximum memory in bytes: what the cgroup counts, or the sum of resident pages.
	Memory int64
}

// ExceededError says that a group has reached a limit.
type ExceededError struct {
	// Limit is [Tasks] or [Memory].
	Limit string
	// Most is the limit: a number of tasks, or bytes.
	Most int64
	// Shared reports whether it is the limit of all groups together, of which this one uses the most.
	Shared bool
}

// Error names the limit.
func (e *ExceededError) Error() string {
	whose := "its limit"
	if e.Shared {
		whose = "the limit of all programs together, of which it takes the most,"
	}
	if e.Limit == Tasks {
		return fmt.Sprintf("it reached %s of %d tasks", whose, e.Most)
	}
	return fmt.Sprintf("it reached %s of %d MiB of memory", whose, e.Most>>20)
}

// Report says which limits are enforced on this system.
type Report struct {
	// Held and NotHeld are what the kernel enforces and what it does not, each a few words.
	Held, NotHeld []string
	// Why is the reason why the kernel does not enforce all; empty if it does.
	Why string
}

// note adds something that is not enforced and the reason, each once.
func (r *Report) note(what string, err error) {
	if slices.Contains(r.NotHeld, what) {
		return
	}
	r.NotHeld = append(r.NotHeld, what)
	r.Why = strings.TrimPrefix(r.Why+"; "+err.Error(), "; ")
}

func (r *Report) clone() Report {
	return Report{slices.Clone(r.Held), slices.Clone(r.NotHeld), r.Why}
}

// add notes how a limit is enforced.
func (r *Report) add(limit string, version int) {
	if version > 0 {
		r.Held = append(r.Held, fmt.Sprintf("%s: limited by cgroup version %d", limit, version))
		return
	}
	r.NotHeld = append(r.NotHeld, limit+": watched, not limited by the kernel")
}
