package sandbox

import (
	"maps"
	"slices"
	"strings"
)

// Report describes which rules the kernel enforces. The zero value means that it enforces no rules.
type Report struct {
	// By is the mechanism that enforces the rules, which is `namespaces` or `Landlock`. It is empty if there is none.
	By string `json:"by,omitzero"`
	// Enforced contains short descriptions of the parts of the rules that are enforced. NotEnforced contains short
	// descriptions of the parts that are not enforced.
	Enforced    []string `json:"held,omitempty"`
	NotEnforced []string `json:"notHeld,omitempty"`
	// Opened contains one sentence for each program that may be changed because of the rules, and for each rule that
	// restricts access more than its entry suggests. The operator has chosen these rules, so mode [Required] allows
	// them.
	Opened []string `json:"opened,omitempty"`
	// Why is the reason why no better mechanism is used. It is empty if there is no better mechanism.
	Why string `json:"why,omitzero"`
}

// isComplete reports whether all rules are enforced. The limit on inotify instances does not count as a rule, because
// it can't be set on many systems, for example in containers with a read-only /proc/sys.
func (r *Report) isComplete() bool {
	isRule := func(what string) bool { return what != partInotify }
	return r.By != "" && !slices.ContainsFunc(r.NotEnforced, isRule)
}

// String returns the report in one line.
func (r Report) String() string {
	var parts []string
	if r.By == "" {
		parts = []string{"nothing is enforced"}
	} else {
		parts = []string{"enforced by " + r.By + ": " + strings.Join(r.Enforced, ", ")}
	}
	if len(r.NotEnforced) > 0 {
		parts = append(parts, "not enforced: "+strings.Join(r.NotEnforced, ", "))
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

// Advice describes what to do so that more rules are enforced. It returns "" if all rules are enforced, and also if the
// operator has turned the sandbox off.
func (r Report) Advice() string {
	switch {
	case r.isComplete() || r.Why == offReason:
		return ""
	case r.By != "namespaces":
		return "allow user namespaces (sysctl user.max_user_namespaces; on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0), " +
			"or run the servers in containers (deploy/README.md); with `sandbox: {mode: required}`, the gateway starts no server without a complete sandbox"
	default:
		return "docs/operations.md, Servers over stdio, says what each of these needs"
	}
}

// A ReportGroup is a list of servers that have the same report.
type ReportGroup struct {
	// Names contains the names of the servers, sorted. There is at least one name.
	Names  []string
	Report Report
}

// GroupByReport groups servers that have the same report. The groups are sorted by their first name.
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
