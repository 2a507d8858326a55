package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// modelSelects is a second implementation of selectors, written from the documentation.
func modelSelects(s engine.Selector, call engine.Call) bool {
	if s.Server != "" && s.Server != call.Server {
		return false
	}
	return slices.ContainsFunc(append([]engine.Principal{call.Subject.Caller}, call.Subject.Chain...), func(p engine.Principal) bool {
		agent := s.Agent == "" || s.Agent == p.Agent || s.Agent == p.Name || "agent:"+p.Tenant+"/"+s.Agent == p.Name
		return agent && (s.Tenant == "" || s.Tenant == p.Tenant)
	})
}

func drawStops(t *rapid.T) (out []engine.Stop) {
	for range rapid.IntRange(0, 3).Draw(t, "stops") {
		out = append(out, engine.Stop{
			Selector: engine.Selector{
				Agent:  rapid.SampledFrom([]string{"", "", "ci-1", "ana", "ben", "other"}).Draw(t, "agent"),
				Server: rapid.SampledFrom([]string{"", "", "s", "st", "x"}).Draw(t, "server"),
				Tenant: rapid.SampledFrom([]string{"", "", "acme", "default"}).Draw(t, "tenant"),
			},
			Reason: "a test",
		})
	}
	return out
}

// The test compares a set with stops and the same set without stops. If no stop selects a call, both sets make the same
// decision. If a stop selects the call, the set with stops refuses it with the code stopped.
func TestDecide_StopRefusesExactlyTheSelectedCalls(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents := drawDocuments(t, "d")
		set, err := engine.Compile(documents, options)
		if err != nil {
			t.Fatal(err)
		}
		stops := drawStops(t)
		stopped, call := set.WithStops(engine.NewStops(stops)), drawCall(t)
		selected := slices.ContainsFunc(stops, func(s engine.Stop) bool { return modelSelects(s.Selector, call) })
		before, after := set.Decide(call), stopped.Decide(call)
		switch {
		case !selected:
			if diff := gocmp.Diff(before, after); diff != "" {
				t.Fatalf("a call that no stop selects is decided differently (-without +with the stops):\n%s", diff)
			}
		case after.Effect != engine.Deny || after.Code != engine.Stopped || after.Limits != nil || after.Approval != nil || after.Hidden:
			t.Fatalf("a call that a stop selects: %+v", after)
		}
		if diff := gocmp.Diff(set.Access(call.Subject, call.Server), stopped.Access(call.Subject, call.Server)); diff != "" {
			t.Fatalf("a stop changes what a caller sees:\n%s", diff)
		}
		if call.OfTool() && set.Visible(call.Subject, call.Server, call.Tool, call.Facts) != stopped.Visible(call.Subject, call.Server, call.Tool, call.Facts) {
			t.Fatal("a stop changes the list of tools")
		}
	})
}

func TestDecide_StopNamesItsReasonAndTheCommand(t *testing.T) {
	t.Parallel()
	set, err := engine.Compile([]engine.Document{{Name: "d", Default: engine.DefaultAllow}}, options)
	if err != nil {
		t.Fatal(err)
	}
	owner := engine.Principal{Tenant: "acme", Name: "ana", Agent: "assistant"}
	call := engine.Call{Server: "s", Tool: "t", Facts: engine.Facts{Status: engine.Callable}, Subject: engine.Subject{
		Caller: engine.Principal{Tenant: "acme", Name: "agent:acme/4f2a", Agent: "coder"}, Chain: []engine.Principal{owner},
	}}
	for _, tt := range []struct {
		selector engine.Selector
		chain    int
		message  string
	}{
		{engine.Selector{}, 0, "all calls. Do not repeat the call: it is refused until an operator runs `sluice resume --all`."},
		{engine.Selector{Agent: "coder"}, 0, "all calls of agent coder. Do not repeat the call: it is refused until an operator runs `sluice resume --agent coder`."},
		{engine.Selector{Agent: "4f2a"}, 0, "`sluice resume --agent 4f2a`."},
		{engine.Selector{Agent: "agent:acme/4f2a"}, 0, "`sluice resume --agent agent:acme/4f2a`."},
		{engine.Selector{Agent: "assistant", Tenant: "acme"}, 1, "all calls of agent assistant of tenant acme."},
		{engine.Selector{Server: "s", Tenant: "acme"}, 0, "`sluice resume --server s --tenant acme`."},
	} {
		stopped := set.WithStops(engine.NewStops([]engine.Stop{{Selector: tt.selector, Reason: "it sends mail to strangers"}}))
		for _, method := range []string{"tools/call", "prompts/get", "sampling/createMessage", "notifications/vendor/x", "vendor/method"} {
			one := call
			one.Method = method
			d := stopped.Decide(one)
			if d.Code != engine.Stopped || d.ChainIndex != tt.chain || !strings.HasPrefix(d.Message, "it sends mail to strangers. An operator has stopped all calls") || !strings.Contains(d.Message, tt.message) {
				t.Errorf("%+v, %s: %+v", tt.selector, method, d)
			}
		}
		if why := stopped.Explain(call).Why; !strings.HasPrefix(why, "An operator has stopped "+tt.selector.String()+".") {
			t.Errorf("%+v: %s", tt.selector, why)
		}
	}
	for _, other := range []engine.Selector{{Agent: "coder", Tenant: "other"}, {Server: "t"}, {Agent: "cod"}, {Agent: "coder", Server: "t"}, {Agent: "assistant", Tenant: "other"}} {
		if d := set.WithStops(engine.NewStops([]engine.Stop{{Selector: other, Reason: "x"}})).Decide(call); d.Effect != engine.Allow {
			t.Errorf("%+v stops the call: %+v", other, d)
		}
	}
}

func TestCouldAllow_StopEndsNotificationsWithContents(t *testing.T) {
	t.Parallel()
	set, err := engine.Compile([]engine.Document{{Name: "d", Rules: []engine.Rule{{Name: "all", Match: engine.Match{Method: []string{"*"}}, Action: engine.ActionAllow}}}}, options)
	if err != nil {
		t.Fatal(err)
	}
	stopped := set.WithStops(engine.NewStops([]engine.Stop{{Selector: engine.Selector{Server: "s"}, Reason: "x"}}))
	subject := engine.Subject{Caller: engine.Principal{Tenant: "acme", Name: "ana"}}
	for method, want := range map[string]bool{
		"notifications/message": false, "notifications/resources/updated": false, "notifications/roots/list_changed": false, "notifications/elicitation/complete": false,
		"notifications/tools/list_changed": true, "notifications/prompts/list_changed": true, "prompts/list": true, "resources/subscribe": true, "sampling/createMessage": true,
	} {
		if got := stopped.CouldAllow(subject, "s", method, engine.Facts{Status: engine.Callable}); got != want {
			t.Errorf("%s: %t", method, got)
		}
		if !stopped.CouldAllow(subject, "other", method, engine.Facts{Status: engine.Callable}) {
			t.Errorf("%s to another server is stopped", method)
		}
	}
}

// An operator stops an agent that works for ana. The agent's lists stay the same, but the agent is not notified when a
// resource changes.
func TestShowsEntry_StopEndsUpdatesOfResources(t *testing.T) {
	t.Parallel()
	set, err := engine.Compile([]engine.Document{{Name: "d", Default: engine.DefaultAllow, Rules: []engine.Rule{{Name: "all", Match: engine.Match{Method: []string{"*"}}, Action: engine.ActionAllow}}}}, options)
	if err != nil {
		t.Fatal(err)
	}
	ana := engine.Principal{Tenant: "acme", Name: "ana"}
	agent := engine.Subject{Caller: engine.Principal{Tenant: "acme", Name: "agent:acme/4f2a", Agent: "coder"}, Chain: []engine.Principal{ana}}
	stopped := set.WithStops(engine.NewStops([]engine.Stop{{Selector: engine.Selector{Agent: "coder", Server: "s"}, Reason: "x"}}))
	callable := engine.Facts{Status: engine.Callable}
	for kind, want := range map[engine.EntryKind]bool{engine.EntryPrompt: true, engine.EntryResource: true, engine.EntryTemplate: true, engine.EntryUpdate: false} {
		if got := stopped.ShowsEntry(agent, "s", kind, "file:///a", callable); got != want {
			t.Errorf("kind %d: %t", kind, got)
		}
		if !set.ShowsEntry(agent, "s", kind, "file:///a", callable) || !stopped.ShowsEntry(agent, "other", kind, "file:///a", callable) || !stopped.ShowsEntry(engine.Subject{Caller: ana}, "s", kind, "file:///a", callable) {
			t.Errorf("kind %d is hidden without a stop", kind)
		}
	}
}

func TestNewStops_SumDependsOnSelectorsAndReasonsAlone(t *testing.T) {
	t.Parallel()
	a, b := engine.Stop{Selector: engine.Selector{Agent: "a"}, Reason: "x"}, engine.Stop{Selector: engine.Selector{Server: "a"}, Reason: "x"}
	seen := make(map[string]bool)
	for _, list := range [][]engine.Stop{nil, {a}, {b}, {a, b}, {{Selector: a.Selector, Reason: "y"}}, {{Reason: "x"}}} {
		seen[fmt.Sprint(engine.NewStops(list).Sum())] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d of 6 sums differ", len(seen))
	}
	if engine.NewStops([]engine.Stop{a, b}).Sum() != engine.NewStops([]engine.Stop{b, a}).Sum() || engine.NewStops(nil).Sum() != (engine.Stops{}).Sum() {
		t.Error("the sum depends on the order, or no stops have a sum")
	}
}

// A stop also refuses calls to a server in observe mode. It still refuses them after observe mode has ended.
func TestStops_RefuseCallsToObservedServers(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	until := now.Add(time.Hour)
	set, err := engine.Compile([]engine.Document{{Name: "d", Default: engine.DefaultDeny, ObserveUntil: until}},
		engine.Options{SessionCap: 1, Times: engine.Times{Decide: time.Minute, Execute: time.Minute}, Observe: engine.Observe{All: until}, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	call := engine.Call{Server: "files", Tool: "read", Subject: engine.Subject{Caller: engine.Principal{Tenant: "default", Name: "ana"}}, Facts: engine.Facts{Status: engine.Callable}}
	if got := set.Decide(call); got.Effect != engine.Allow || got.Observed == nil {
		t.Fatalf("without a stop: %+v, want the call to be allowed and observed", got)
	}
	stopped := set.WithStops(engine.NewStops([]engine.Stop{{Selector: engine.Selector{Server: "files"}, Reason: "broken"}}))
	later, err := stopped.At(until)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*engine.Set{"while the server is observed": stopped, "after the observation": later} {
		if got := s.Decide(call); got.Effect != engine.Deny || got.Code != engine.Stopped || got.Observed != nil {
			t.Errorf("%s: %+v, want the code stopped", name, got)
		}
	}
}
