package advice_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// An attempt is one call, or several concurrent calls.
type attempt struct {
	file string
	Call struct {
		Server string         `json:"server"`
		Name   string         `json:"name"`
		Args   jsontext.Value `json:"args"`
	} `json:"call"`
	Subject principal `json:"subject"`
	// Tool contains facts about the called tool.
	Tool facts `json:"tool"`
	// Times is the number of calls. If it is absent, there is one call.
	Times int `json:"times"`
	// Varies names the value that differs between the calls: "session", "agent" (each agent has a different subject),
	// or "" if all calls are equal.
	Varies string `json:"varies"`
	// Want is the result of the calls: "allowed", "limited" (a limit denies one of the calls), "denied", "held" (each
	// call needs an approval) or "covered" (one approval covers several calls).
	Want string `json:"want"`
	// People is the number of people who must approve. It is 0 if the number is not checked.
	People int `json:"people"`
}

type facts struct {
	Standing string          `json:"standing"`
	Category string          `json:"category"`
	Risk     string          `json:"risk"`
	Tags     []string        `json:"tags"`
	Hints    map[string]bool `json:"annotations"`
	Believed bool            `json:"believed"`
	Unsure   bool            `json:"unsure"`
}

type principal struct {
	Subject string      `json:"subject"`
	Agent   string      `json:"agent"`
	Groups  []string    `json:"groups"`
	Session string      `json:"session"`
	Chain   []principal `json:"chain"`
}

// statuses maps the names of statuses in the test files to the statuses. An empty name means that the tool is callable.
var statuses = map[string]engine.Status{"": engine.Callable, "changed": engine.Changed, "quarantined": engine.Quarantined}

// checkValues fails the test if the attempt contains an unknown value.
func (a *attempt) checkValues(t *testing.T) {
	t.Helper()
	if _, known := statuses[a.Tool.Standing]; !known {
		t.Errorf("%s: no tool is %q", a.file, a.Tool.Standing)
	}
	if c := a.Tool.Category; c != "" && !slices.Contains(engine.Categories(), c) {
		t.Errorf("%s: no category is %q", a.file, c)
	}
	if r := a.Tool.Risk; r != "" && !slices.Contains(engine.Risks(), r) {
		t.Errorf("%s: no risk is %q", a.file, r)
	}
	if !slices.Contains([]string{"", "session", "agent"}, a.Varies) {
		t.Errorf("%s: %q can't vary", a.file, a.Varies)
	}
}

// outcome returns the result of an attempt, and the number of people who must approve. It treats all calls as
// concurrent, so a limit is the maximum number of calls that are allowed.
func (a *attempt) outcome(set *engine.Set) (string, int) {
	spent := make(map[string]int64)
	for i := range max(a.Times, 1) {
		d := set.Decide(a.call(i))
		switch d.Effect {
		case engine.Deny:
			return "denied", 0
		case engine.RequireApproval:
			if d.Approval.Grant != (engine.Grant{}) {
				return "covered", d.Approval.Quorum
			}
			return "held", d.Approval.Quorum
		case engine.Allow:
		}
		for _, l := range d.Limits {
			if spent[l.Bucket]++; spent[l.Bucket] > l.Max {
				return "limited", 0
			}
		}
	}
	return "allowed", 0
}

func (a *attempt) call(i int) engine.Call {
	caller := a.Subject.engine()
	switch a.Varies {
	case "session":
		caller.Session = fmt.Sprintf("%s-%d", caller.Session, i)
	case "agent":
		caller.Name, caller.Agent = fmt.Sprintf("%s-%d", caller.Name, i), fmt.Sprintf("%s-%d", caller.Agent, i)
	}
	call := engine.Call{
		Server: a.Call.Server, Tool: a.Call.Name, Subject: engine.Subject{Caller: caller},
		Facts: engine.Facts{
			Status: statuses[a.Tool.Standing], Category: a.Tool.Category, Risk: a.Tool.Risk,
			Tags: a.Tool.Tags, Hints: a.Tool.Hints, Believed: a.Tool.Believed, Sure: !a.Tool.Unsure,
		},
	}
	if a.Call.Args != nil {
		call.Params = fmt.Sprintf(`{"arguments":%s}`, a.Call.Args)
	}
	for i := range a.Subject.Chain {
		call.Subject.Chain = append(call.Subject.Chain, a.Subject.Chain[i].engine())
	}
	return call
}

func (p *principal) engine() engine.Principal {
	return engine.Principal{Tenant: "default", Name: p.Subject, Agent: p.Agent, Groups: p.Groups, Session: p.Session}
}
