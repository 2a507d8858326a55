package sandbox

import (
	"maps"
	"slices"
	"strings"
)

// Report describes the rules that the kernel enforces. The zero value means that it enforces none.
type Report struct {
	// By is the mechanism: `namespaces` or `Landlock`. It is empty if there is none.
	By string `json:"by,omitzero"`
	// Enforced and NotEnforced contain short descriptions of the parts that are enforced, and of the parts that are not.
	Enforced    []string `json:"held,omitempty"`
	NotEnforced []string `json:"notHeld,omitempty"`
	// Opened contains one sentence for each program that the rules allow to be changed, and for each rule that restricts
	// access more than its entry suggests. The operator has chosen these rules, so mode [Required] allows them.
	Opened []string `json:"opened,omitempty"`
	// Why is the reason why no better mechanism is used. It is empty if there is no better mechanism.
	Why string `json:"why,omitzero"`
}

// isComplete reports whether all rules are enforced. The limit of inotify instances is not a rule, because many systems
// can't set it, for example containers with a read-only /proc/sys.
func (r *Report) isComplete() bool {
	isRule := func(what string) bool { return what != partInotify }
	return r.By != "" && !slices.ContainsFunc(r.NotEnforced, isRule)
}

// String returns the report in one line.
func (r Report) String() string {
	var parts []string
	if r.By == "" {
		parts = []string{"nothing holds it"}
	} else {
		parts = []string{"held by " + r.By + ": " + strings.Join(r.Enforced, ", ")}
	}
	if len(r.NotEnforced) > 0 {
		parts = append(parts, "not held: "+strings.Join(r.NotEnforced, ", "))
	}
	parts = append(parts, r.Opened...)
	if r.Why != "" {
		parts = append(parts, r.Why)
	}
	if r.By == "" && len(r.Enforced) > 0 {
		parts = append(parts, "nevertheless limited: "+strings.Join(r.Enforced, ", "))
	}
	return strings.Join(parts, "; ")
}

// offReason is the value of [Report.Why] if a server's sandbox is off.
const offReason = "it is off"

// Advice describes how more rules can be enforced. It returns "" if all rules are enforced. It also returns "" if the
// sandbox is off, because the operator has chosen that.
func (r Report) Advice() string {
	switch {
	case r.isComplete() || r.Why == offReason:
		return ""
	case r.By != "namespaces":
		return "allow user namespaces (sysctl user.max_user_namespaces; on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0), " +
			"or run the servers in containers (deploy/README.md); `sandbox: {mode: required}` starts no server without"
	default:
		return "docs/operations.md, Servers over stdio, says what each of these needs"
	}
}

// A ReportGroup is a list of servers with the same report.
type ReportGroup struct {
	// Names contains the names of the servers, sorted. There is at least one.
	Names  []string
	Report Report
}

// GroupByReport groups servers with the same report. The groups are in the order of their first names.
func GroupByReport(reports map[string]Report) []ReportGroup {
	var out []ReportGroup
	places := make(map[string]int)
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		text := reports[name].String()
		at, known := places[text]
		if !known {
			at = len(out)
			places[text] = at
			out = append(out, ReportGroup{Report: reports[name]})
		}
		out[at].Names = append(out[at].Names, name)
	}
	return out
}
