// Package proclimit limits the tasks and the memory of child processes. The limits apply to each child together with
// all its descendants. On Linux the kernel enforces the limits if this process can create cgroups (version 1 or 2).
// Otherwise the package counts the descendants periodically, and the caller must end processes that exceed a limit.
package proclimit

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// These are the values of [ExceededError.Limit].
const (
	Tasks  = "tasks"
	Memory = "memory"
)

// OOMScore is the oom_score_adj of processes in a group. The kernel kills processes with higher scores first. The
// range is -1000 to 1000, and the default is 0.
const OOMScore = 800

// CheckEvery is the interval at which callers should call [Group.Check].
const CheckEvery = 100 * time.Millisecond

// Limits contains the limits of one process together with all its descendants. Callers must set both fields.
type Limits struct {
	// Tasks is the maximum number of processes and threads at a time.
	Tasks int
	// Memory is the maximum memory, in bytes. It limits the memory usage of the cgroup. If there is no cgroup, it limits
	// the total size of the resident pages that are not shared.
	Memory int64
}

// ExceededError means that a group has reached a limit.
type ExceededError struct {
	// Limit is [Tasks] or [Memory].
	Limit string
	// Max is the limit, in tasks or bytes.
	Max int64
	// Shared is true if Max is the limit for all groups together. In that case no other group uses more than this
	// group.
	Shared bool
}

func (e *ExceededError) Error() string {
	whose := "its limit"
	if e.Shared {
		whose = "the limit of all programs together, of which it uses the most,"
	}
	if e.Limit == Tasks {
		return fmt.Sprintf("it reached %s of %d tasks", whose, e.Max)
	}
	return fmt.Sprintf("it reached %s of %d MiB of memory", whose, e.Max>>20)
}

// Report lists the limits that the kernel enforces on this system.
type Report struct {
	// Enforced contains short descriptions of the limits that the kernel enforces. NotEnforced contains descriptions of
	// the other limits.
	Enforced, NotEnforced []string
	// Why is the reason why the kernel does not enforce all limits. It is empty if the kernel enforces all limits.
	Why string
}

// note adds a description of a limit that the kernel does not enforce, with the reason. It is idempotent.
func (r *Report) note(what string, err error) {
	if slices.Contains(r.NotEnforced, what) {
		return
	}
	r.NotEnforced = append(r.NotEnforced, what)
	r.Why = strings.TrimPrefix(r.Why+"; "+err.Error(), "; ")
}

func (r *Report) clone() Report {
	return Report{slices.Clone(r.Enforced), slices.Clone(r.NotEnforced), r.Why}
}

// add adds the description of a limit. version is the version of cgroups, or 0 if the kernel does not enforce the
// limit.
func (r *Report) add(limit string, version int) {
	if version > 0 {
		r.Enforced = append(r.Enforced, fmt.Sprintf("%s: limited by cgroup version %d", limit, version))
		return
	}
	r.NotEnforced = append(r.NotEnforced, limit+": watched, not limited by the kernel")
}
