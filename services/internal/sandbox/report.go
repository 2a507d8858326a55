package sandbox

import (
	"maps"
	"slices"
	"strings"
)

// Report is what the kernel holds of the rules. The zero value: nothing.
type Report struct {
	// By is what holds it: `namespaces` or `Landlock`; empty where nothing does.
	By string `json:"by,omitzero"`
	// Held and NotHeld are what is held and what is not, each a few words.
	Held    []string `json:"held,omitempty"`
	NotHeld []string `json:"notHeld,omitempty"`
	// Opened says, in a sentence each, which programs the rules let it change, and where they leave it less than its
	// entry may expect. It is the operator's choice, so mode [Required] allows it.
	Opened []string `json:"opened,omitempty"`
	// Why says why it is not held by a better way; empty where there is none.
	Why string `json:"why,omitzero"`
}

// whole reports whether all rules hold. The number of inotify instances is no rule: systems where it can't be set are
// many, such as containers whose /proc/sys is read-only.
func (r *Report) whole() bool {
	isRule := func(what string) bool { return what != heldInotify }
	return r.By != "" && !slices.ContainsFunc(r.NotHeld, isRule)
}

// String is the report in one line.
func (r Report) String() string {
	var parts []string
	if r.By == "" {
		parts = []string{"nothing holds it"}
	} else {
		parts = []string{"held by " + r.By + ": " + strings.Join(r.Held, ", ")}
	}
	if len(r.NotHeld) > 0 {
		parts = append(parts, "not held: "+strings.Join(r.NotHeld, ", "))
	}
	parts = append(parts, r.Opened...)
	if r.Why != "" {
		parts = append(parts, r.Why)
	}
	if r.By == "" && len(r.Held) > 0 {
		parts = append(parts, "limited all the same: "+strings.Join(r.Held, ", "))
	}
	return strings.Join(parts, "; ")
}

// offWhy is why nothing holds a server whose sandbox is off.
const offWhy = "it is off"

// Advice says what to do so that more is held; empty if all rules hold, or if the sandbox is off, which is the
// operator's choice.
func (r Report) Advice() string {
	switch {
	case r.whole() || r.Why == offWhy:
		return ""
	case r.By != "namespaces":
		return "allow user namespaces (sysctl user.max_user_namespaces; on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0), " +
			"or run the servers in containers (deploy/README.md); `sandbox: {mode: required}` starts no server without"
	default:
		return "docs/operations.md, Servers over stdio, says what each of these needs"
	}
}

// A Group is servers whose reports are the same.
type Group struct {
	// Names are sorted; there is at least one.
	Names  []string
	Report Report
}

// Alike groups reports by name that are the same, in the order of their first names.
func Alike(reports map[string]Report) []Group {
	var out []Group
	places := make(map[string]int)
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		text := reports[name].String()
		at, known := places[text]
		if !known {
			at = len(out)
			places[text] = at
			out = append(out, Group{Report: reports[name]})
		}
		out[at].Names = append(out[at].Names, name)
	}
	return out
}
