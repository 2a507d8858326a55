package policy_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// observedCalls is the name of the environment variable that sets the number of calls in the simulated day.
// observedSeed is the name of the environment variable that sets the seed for choosing these calls.
const observedCalls, observedSeed = "SLUICE_OBSERVED_CALLS", "SLUICE_SEED"

// day is a mesh with five real servers and three agents. The agents make the same calls on each simulated day.
type day struct {
	*stack.Stack

	process *stack.Process
	root    string // the directory that the file system server serves
	agents  []*dayAgent
	results map[string]int // the numbers of results by kind, on all days
}

// result is the response that an agent received to a call. code is empty if the policy allowed the call.
type result struct {
	code, rule string
	failed     bool // the server's result is an error
}

// Three agents call five real servers that have mode: observe, first without a policy and then with a policy that a
// person writes from suggestions. Then the policy is enforced, and the agents make the same calls again. Exactly the
// calls that the report predicted are refused. The calls are those of a working day, without the pauses.
func TestObservedDay_ReportPredictsTheRefusedCalls(t *testing.T) {
	t.Parallel()
	if os.Getenv(observedCalls) == "" {
		t.Skipf("%s is not set: it holds the number of calls", observedCalls)
	}
	d := startDay(t)
	d.refusesInsecureCalls(t)

	began, _ := d.run(t)
	first := d.report(t, began)
	checkRows(t, "without a policy", first, d.rows(func(dayCall) string { return "denied_by_default" }))
	d.writePolicies(t, began)

	began, _ = d.run(t)
	second := d.report(t, began)
	checkRows(t, "with a policy", second, d.rows(func(c dayCall) string { return c.refused }))
	predicted := d.predictions(t, began)

	d.enforce(t)
	began, results := d.run(t)
	d.compare(t, predicted, results)
	if third := d.report(t, began); third.Different != 0 {
		t.Errorf("the report of an enforced day has %d calls with another result", third.Different)
	}
	t.Logf("results of all days: %v", d.results)
}

// startDay starts the mesh with the five servers, all with mode: observe, and with a policy that denies everything.
func startDay(t *testing.T) *day {
	t.Helper()
	dir := writeProject(t)
	d := &day{root: dir, results: make(map[string]int)}
	d.Stack = stack.WriteConfig(t, stack.Options{
		Servers: dayServers(t, dir),
		Tokens:  dayTokens(),
		// The report does not predict refusals because of the limits of approvals. These limits are larger than the
		// number of calls, so that they have no effect.
		Extra: "approvals: {hold: 0s, max_pending: 1000, max_asked: {max: 100000}}",
	})
	if err := os.Mkdir(filepath.Join(d.Dir, "policies"), 0o700); err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, filepath.Join(d.Dir, "policies", "base.yaml"), "{version: 1, default: deny}\n")
	stack.ReplaceInFile(t, d.Config, "policies: [policy.yaml]", "policies: [policies/]")
	d.process = stack.Start(t, d.Stack)
	d.agents = dayAgents(dir, dayNumber(t, observedCalls), uint64(dayNumber(t, observedSeed)))
	return d
}

// writeProject creates the directory that the file system server serves.
func writeProject(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"project/plan.md": "# Plan\n", "project/notes.md": "one\ntwo\n", "private/salaries.csv": "ana,100\n"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		stack.WriteFile(t, file, text)
	}
	return dir
}

// dayServers returns the entries of the servers for [stack.Options.Servers]. The servers have mode: observe for two
// weeks.
func dayServers(t *testing.T, dir string) string {
	t.Helper()
	until := time.Now().Add(14 * 24 * time.Hour).UTC().Format(time.DateOnly)
	observed := "{mode: observe, until: " + until + ", "
	var out strings.Builder
	for _, s := range []struct {
		name    string
		command []string
		keys    string // more keys of the server
		stdio   string // more keys of stdio
	}{
		{name: "files", command: npmtest.ServerFilesystem(t, dir)},
		{name: "memory", command: npmtest.ServerMemory(t), stdio: fmt.Sprintf("per: shared, env: {MEMORY_FILE_PATH: %q}, ", filepath.Join(t.TempDir(), "memory.jsonl"))},
		{name: "everything", command: npmtest.ServerEverything(t, "stdio")},
		{name: "thinking", command: npmtest.ServerSequentialThinking(t), keys: "pin: review, "},
		{name: "claude-flow", command: npmtest.ClaudeFlow(t), keys: "unwrap: claude-flow, "},
	} {
		text := stack.StdioEntry(t, s.name, s.command)
		text = strings.Replace(text, "{stdio: {", observed+s.keys+"stdio: {"+s.stdio, 1)
		out.WriteString(text + "\n")
	}
	return out.String()
}

func dayNumber(t *testing.T, name string) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv(name), "1"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// sluice runs a command as the operator. The test fails if the command fails.
func (d *day) sluice(t *testing.T, args ...string) stack.CommandResult {
	t.Helper()
	ran := d.try(t, args...)
	if ran.Code != 0 {
		t.Fatalf("sluice %s: exit code %d\n%s%s", strings.Join(args, " "), ran.Code, ran.Stdout, ran.Stderr)
	}
	return ran
}

func (d *day) try(t *testing.T, args ...string) stack.CommandResult {
	t.Helper()
	return stack.Run(t, stack.Command{Args: append(args, "--config", d.Config, "--addr", d.GRPC), Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
}

// refusesInsecureCalls checks that mode: observe allows only calls that rules and defaults would refuse. Other calls
// are still refused: calls to tools whose definitions have not been accepted by a person, calls to quarantined tools,
// calls that an operator has stopped, and calls that the parser or the authentication refuses.
func (d *day) refusesInsecureCalls(t *testing.T) {
	t.Helper()
	a := d.agents[0]
	c := stack.Connect(t, d.MCP("memory"), a.token)
	refused := func(what, code string, resp stack.Response) {
		t.Helper()
		if got := resp.Decision(t).Code; got != code {
			t.Errorf("%s: the code is %q, want %q: %s", what, got, code, resp.Body)
		}
	}
	think := stack.Connect(t, d.MCP("thinking"), a.token)
	eventually.Within(t, 3*time.Minute, "the catalog has all servers", func() bool {
		listed := d.sluice(t, "catalog", "servers").Stdout
		return !slices.ContainsFunc(slices.Collect(maps.Keys(dayPolicies(d.root))), func(server string) bool { return !strings.Contains(listed, "\n"+server+" ") })
	})
	const thought = `{"thought":"a","thoughtNumber":1,"totalThoughts":1,"nextThoughtNeeded":false}`
	refused("a definition that no person accepted", "tool_changed", think.Call("sequentialthinking", thought))
	digest := regexp.MustCompile(`catalog accept thinking --digest ([0-9a-f]+)`).FindStringSubmatch(d.sluice(t, "catalog", "diff", "thinking").Stdout)
	if digest == nil {
		t.Fatalf("catalog diff has no digest: %s", d.sluice(t, "catalog", "diff", "thinking").Stdout)
	}
	d.sluice(t, "catalog", "accept", "thinking", "--digest", digest[1], "--reason", "read")

	d.sluice(t, "catalog", "quarantine", "memory", "read_graph", "--reason", "looks odd")
	refused("a tool in quarantine", "quarantined", c.Call("read_graph", `{}`))
	d.sluice(t, "catalog", "quarantine", "memory", "read_graph", "--lift", "--reason", "is fine")

	d.sluice(t, "stop", "--agent", a.name, "-m", "lunch")
	refused("a stopped agent", "stopped", c.Call("read_graph", `{}`))
	d.sluice(t, "resume", "--agent", a.name)

	refused("duplicate keys", "json_duplicate_key", c.Post(stack.CallRequest(`{"name":"read_graph","name":"delete_entities"}`)))
	if resp := c.WithToken("no-such-token").Call("read_graph", `{}`); resp.Status != 401 {
		t.Errorf("an unknown token: status %d: %s", resp.Status, resp.Body)
	}
	for _, r := range d.records(t, time.Time{}) {
		if r.GetKind() == gatewayv1.RecordKind_RECORD_KIND_INTENT && r.GetMethod() == "tools/call" {
			t.Errorf("a call was sent: %v", r)
		}
	}
}

// run runs all agents concurrently. Each agent makes its own calls in order. run returns the time before the first
// call, and the results by agent.
func (d *day) run(t *testing.T) (began time.Time, out map[string][]result) {
	t.Helper()
	clients := make(map[string]map[string]*stack.Client)
	for _, a := range d.agents {
		clients[a.name] = a.connect(t, d.Stack)
	}
	began, out = time.Now(), make(map[string][]result)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, a := range d.agents {
		all.Go(func() {
			var got []result
			for _, c := range a.calls {
				r, err := a.call(clients[a.name], c)
				if err != nil {
					t.Errorf("%s: %s: %v", a.name, c, err)
					return
				}
				got = append(got, r)
			}
			mu.Lock()
			defer mu.Unlock()
			out[a.name] = got
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	d.count(t, out, time.Since(began))
	return began, out
}

// count counts the results of a day and logs how long the day took.
func (d *day) count(t *testing.T, results map[string][]result, took time.Duration) {
	t.Helper()
	calls := 0
	for _, list := range results {
		calls += len(list)
		for _, r := range list {
			d.results[cmp.Or(r.code, map[bool]string{false: "succeeded", true: "error of the server"}[r.failed])]++
		}
	}
	t.Logf("%d calls in %s", calls, took.Round(time.Millisecond))
}

// dayReport contains the parts of the output of `sluice report -o json` that the test reads.
type dayReport struct {
	Complete         bool
	Calls, Different int
	Others           int
	Rows             []struct {
		Server, Method, Tool, Subject, Agent string
		Allowed                              bool
		Observed                             struct{ Effect, Code string }
		Count                                int
		First, Last                          time.Time
	}
}

// report returns the report on the calls since a given time. It checks the report's totals and the times in it.
func (d *day) report(t *testing.T, since time.Time) dayReport {
	t.Helper()
	ended := time.Now()
	text := d.sluice(t, "report", "--since", since.Format(time.RFC3339Nano))
	t.Logf("%s", text.Stdout)
	if lines := strings.Count(text.Stdout, "\n"); lines > 24 {
		t.Errorf("the report has %d lines, which do not fit a screen", lines)
	}
	r := stack.DecodeOutput[dayReport](t, d.sluice(t, "report", "-o", "json", "--since", since.Format(time.RFC3339Nano)))
	sent, rows := 0, 0
	for _, a := range d.agents {
		sent += len(a.calls)
	}
	for _, row := range r.Rows {
		rows += row.Count
		if row.First.Before(since) || row.Last.After(ended) || row.Last.Before(row.First) {
			t.Errorf("the calls of a row were made from %s to %s, but the day was from %s to %s", row.First, row.Last, since, ended)
		}
	}
	if !r.Complete || r.Calls != sent || r.Different != rows || r.Others != 0 {
		t.Errorf("the report is complete: %t; it has %d calls, %d with another result and %d in rows, but %d were sent", r.Complete, r.Calls, r.Different, rows, sent)
	}
	return r
}

// rows returns the rows that a report must contain. The function want returns the code with which a call would have
// been refused.
func (d *day) rows(want func(dayCall) string) map[string]int {
	out := make(map[string]int)
	for _, a := range d.agents {
		for _, c := range a.calls {
			if code := want(c); code != "" {
				out[fmt.Sprintf("%s/%s %s %s%s", c.server, c.tool, a.name, code, map[bool]string{true: ", refused anyway"}[c.unknown])]++
			}
		}
	}
	return out
}

// checkRows compares the rows of a report with the expected rows, which are in the map want.
func checkRows(t *testing.T, what string, r dayReport, want map[string]int) {
	t.Helper()
	got := make(map[string]int)
	for _, row := range r.Rows {
		if row.Method != "tools/call" || row.Agent != row.Subject {
			t.Errorf("%s: a row is %+v", what, row)
		}
		got[fmt.Sprintf("%s/%s %s %s%s", row.Server, row.Tool, row.Subject, row.Observed.Code, map[bool]string{false: ", refused anyway"}[row.Allowed])] += row.Count
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("%s: the calls with another result (-counted by the test +reported):\n%s", what, diff)
	}
}

// writePolicies writes the policies as a person would. It takes the policies that are suggested for the calls since a
// given time, and changes the entries that a person would write differently.
func (d *day) writePolicies(t *testing.T, since time.Time) {
	t.Helper()
	edits := dayPolicies(d.root)
	for _, server := range slices.Sorted(maps.Keys(edits)) {
		text := d.sluice(t, "policy", "suggest", "--server", server, "--used", "--since", since.Format(time.RFC3339Nano)).Stdout
		for tool, entry := range edits[server] {
			line := regexp.MustCompile(`(?m)^(  |#   )` + regexp.QuoteMeta(tool) + `: .*$`) // a comment if no agent called the tool
			if !line.MatchString(text) || !strings.Contains(text, "\ntools:\n") {
				t.Fatalf("the suggestion for %s has no entry for %s, or no calls:\n%s", server, tool, text)
			}
			text = line.ReplaceAllLiteralString(text, "  "+tool+": "+entry)
		}
		stack.WriteFile(t, filepath.Join(d.Dir, "policies", server+".yaml"), text)
	}
	d.sluice(t, "policy", "lint", filepath.Join(d.Dir, "policies"))
	d.await(t)
}

// await waits until the mesh has loaded the policies.
func (d *day) await(t *testing.T) {
	t.Helper()
	eventually.Within(t, 3*time.Minute, "the policies are in force", func() bool {
		explained := d.sluice(t, "policy", "explain", "--server", "files", "--tool", "move_file")
		return strings.Contains(explained.Stdout, "ask a person to move files")
	})
}

// enforce removes `mode: observe` from the configuration and restarts the mesh.
func (d *day) enforce(t *testing.T) {
	t.Helper()
	if err := d.process.Stop(t); err != nil {
		t.Fatalf("stopped with %v\n%s", err, d.process.Stderr())
	}
	text := regexp.MustCompile(`mode: observe, until: [0-9-]+, `).ReplaceAllString(stack.ReadFile(t, d.Config), "")
	stack.WriteFile(t, d.Config, text)
	d.process = stack.Start(t, d.Stack)
}

func (d *day) records(t *testing.T, since time.Time) (out []*gatewayv1.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, r := range stack.ListRecords(ctx, t, gatewayv1.NewGatewayServiceClient(d.Operator(t))) {
		if !r.GetTime().AsTime().Before(since) {
			out = append(out, r)
		}
	}
	return out
}

// predictions returns the results that the calls since a given time would have had without mode: observe. They are
// listed for each agent, in the order of its calls.
func (d *day) predictions(t *testing.T, since time.Time) map[string][]result {
	t.Helper()
	out := make(map[string][]result)
	for _, r := range d.records(t, since) {
		kind := r.GetKind()
		if r.GetMethod() != "tools/call" || kind != gatewayv1.RecordKind_RECORD_KIND_INTENT && kind != gatewayv1.RecordKind_RECORD_KIND_REFUSAL {
			continue
		}
		would := result{code: enum.NameOrEmpty(r.GetCode())}
		if o := r.GetObserved(); o != nil {
			would = result{code: enum.NameOrEmpty(o.GetCode()), rule: o.GetRule().GetDocument() + "/" + o.GetRule().GetRule()}
		}
		subject := r.GetPrincipal().GetSubject()
		out[subject] = append(out[subject], would)
	}
	return out
}

// compare compares, call by call, the predictions with the results of the day on which the policy is enforced. It logs
// the refused calls.
func (d *day) compare(t *testing.T, predicted, results map[string][]result) {
	t.Helper()
	counts := make(map[string]int)
	different := 0
	for _, a := range d.agents {
		if len(predicted[a.name]) != len(a.calls) || len(results[a.name]) != len(a.calls) {
			t.Fatalf("%s: %d calls, %d records, %d results", a.name, len(a.calls), len(predicted[a.name]), len(results[a.name]))
		}
		for i, c := range a.calls {
			want, got := predicted[a.name][i], results[a.name][i]
			if got.code == "approval_pending" {
				got.code = "approval_required" // the call was held, and waits
			}
			if want.code != got.code {
				different++
				t.Errorf("call %d of %s, %s: predicted %q (%s), got %q (%s)", i, a.name, c, want.code, want.rule, got.code, got.rule)
			}
			counts[fmt.Sprintf("%s/%s %s", c.server, c.tool, cmp.Or(got.code, "passed"))]++
		}
	}
	var lines strings.Builder
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&lines, "%6d %s\n", counts[key], key)
	}
	t.Logf("calls on the enforced day, %d of which had a result that was not predicted:\n%s", different, lines.String())
}
