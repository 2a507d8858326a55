package agents_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// update makes the tests rewrite their golden files. A new difference between Claude Flow and the mesh is written
// without a reason.
var update = flag.Bool("update", false, "write the golden files of testdata")

const (
	recordings  = "testdata/claude-flow"
	differences = recordings + "/differences.txt"
	// unknownReason is the reason that -update writes for a new difference. The test fails until someone replaces it.
	unknownReason = "?"
	// ignoredText replaces values in a recording that differ in each run and are not compared.
	ignoredText = "…"
)

type recordedCall struct {
	Note      string         `json:"note"`
	Tool      string         `json:"tool"`
	Arguments map[string]any `json:"arguments"`
	// Failed reports whether the call failed in one of the three ways in which Claude Flow reports a failure. Unknown
	// reports whether the result was not recorded.
	Failed  bool `json:"failed"`
	Unknown bool `json:"unknown"`
	Payload any  `json:"payload"`
}

// replay repeats the calls of a recording.
type replay struct {
	client *stack.Client
	// ids maps the agents' ids in the recording to the ids of this run.
	ids map[string]string
}

// The test repeats the calls of a session that was recorded with Claude Flow. The results must contain everything that
// Claude Flow returned. The golden file lists each difference and the reason for it. Additional JSON members do not
// count as differences, because clients ignore unknown members.
func TestClaudeFlowReplay_AgentsAnswerLikeClaudeFlow(t *testing.T) {
	t.Parallel()
	known := readDifferences(t)
	var found []string
	for _, name := range []string{"agents", "limits"} {
		s := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: "  agents: {grpc: {target: wasmagent}}", Policy: "version: 1\nname: all\ndefault: allow\n"}))
		r := &replay{client: stack.Connect(t, s.MCP("agents"), stack.AgentToken), ids: make(map[string]string)}
		for i, call := range readRecording(t, name) {
			for _, what := range r.compare(t, call) {
				found = append(found, fmt.Sprintf("%s %03d %s: %s", name, i+1, call.Note, what))
			}
		}
	}
	if *update {
		writeDifferences(t, found, known)
		return
	}
	for _, what := range found {
		reason, ok := known[what]
		if !ok {
			t.Errorf("a difference that is not in the golden file: %s", what)
		} else if reason == unknownReason {
			t.Errorf("a difference without a reason: %s", what)
		}
		delete(known, what)
	}
	for what := range known {
		t.Errorf("a difference in the golden file that does not exist any more: %s", what)
	}
}

func readRecording(t *testing.T, name string) (calls []recordedCall) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(recordings, name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var call recordedCall
		if err := json.Unmarshal([]byte(line), &call); err != nil {
			t.Fatal(err)
		}
		calls = append(calls, call)
	}
	return calls
}

// compare repeats a recorded call and returns the differences between the recorded result and the new result.
func (r *replay) compare(t *testing.T, call recordedCall) []string {
	t.Helper()
	arguments, _ := r.toCurrentRun(call.Arguments).(map[string]any)
	if call.Tool == "wasm_agent_create" {
		arguments["guest"] = "echo" // echo answers as Claude Flow's agents do without a model
	}
	text, err := json.Marshal(arguments)
	if err != nil {
		t.Fatal(err)
	}
	resp := r.client.Call(call.Tool, string(text))
	var answer struct {
		Result struct {
			IsError           bool
			StructuredContent any
			Content           []struct{ Text string }
		}
		Error *struct{ Message string }
	}
	if err := json.Unmarshal(resp.Body, &answer); err != nil {
		t.Fatalf("%s: %v", resp.Body, err)
	}
	failed, why := answer.Result.IsError || answer.Error != nil, "without a reason"
	switch {
	case answer.Error != nil:
		why = answer.Error.Message
	case len(answer.Result.Content) > 0:
		why = answer.Result.Content[0].Text
	}
	switch {
	case failed && !call.Failed:
		return []string{"fails: " + truncated(r.toRecordedIDs(strings.ReplaceAll(why, "\n", " ")), 90)}
	case !failed && call.Failed:
		return []string{"succeeds"}
	case failed, call.Unknown:
		return nil
	}
	return r.compareValues("", call.Payload, answer.Result.StructuredContent)
}

func truncated(text string, most int) string { return text[:min(len(text), most)] }

var sizedValue = regexp.MustCompile(`^\{\{([0-9]+) (letters|todos)\}\}(.*)$`)

// toCurrentRun converts a recorded value so that it can be used in this run. It replaces the agents' ids. The recording
// describes a long string or list only by its size, and toCurrentRun replaces this description with a string or list of
// that size.
func (r *replay) toCurrentRun(v any) any {
	switch v := v.(type) {
	case string:
		if found := sizedValue.FindStringSubmatch(v); found != nil {
			n, _ := strconv.Atoi(found[1]) // the expression matches only digits
			if found[2] == "letters" {
				return strings.Repeat("x", n) + found[3]
			}
			return slices.Repeat([]any{map[string]any{"content": "one", "status": "pending"}}, n)
		}
		if id := r.ids[v]; id != "" {
			return id
		}
		return v
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = r.toCurrentRun(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for name := range v {
			out[name] = r.toCurrentRun(v[name])
		}
		return out
	}
	return v
}

// toRecordedIDs replaces the agents' ids in this run with the ids in the recording.
func (r *replay) toRecordedIDs(text string) string {
	for there, here := range r.ids {
		text = strings.ReplaceAll(text, here, there)
	}
	return text
}

// compareValues returns the differences between a recorded value and the value in this run. When it first finds the
// recorded id of an agent, it stores the id that the agent has in this run.
func (r *replay) compareValues(at string, there, here any) (out []string) {
	switch there := there.(type) {
	case map[string]any:
		mine, ok := here.(map[string]any)
		if !ok {
			break
		}
		for _, name := range slices.Sorted(maps.Keys(there)) {
			switch {
			case there[name] == nil && mine[name] == nil:
			case mine[name] == nil:
				out = append(out, fmt.Sprintf("%s/%s is missing, was %s", at, name, abbreviatedJSON(there[name])))
			default:
				out = append(out, r.compareValues(at+"/"+name, there[name], mine[name])...)
			}
		}
		return out
	case []any:
		mine, ok := here.([]any)
		if !ok {
			break
		}
		if len(mine) != len(there) {
			return []string{fmt.Sprintf("%s has %d entries, had %d", at, len(mine), len(there))}
		}
		for i := range there {
			out = append(out, r.compareValues(at+"/"+strconv.Itoa(i), there[i], mine[i])...)
		}
		return out
	case string:
		mine, ok := here.(string)
		if !ok {
			break
		}
		if strings.HasPrefix(there, "wasm-agent-") && r.ids[there] == "" {
			r.ids[there] = mine
		}
		if there == ignoredText || mine == r.toCurrentRun(there) {
			return nil
		}
	}
	if reflect.DeepEqual(there, here) {
		return nil
	}
	return []string{fmt.Sprintf("%s is %s, was %s", at, abbreviatedJSON(r.withRecordedIDs(here)), abbreviatedJSON(there))}
}

func (r *replay) withRecordedIDs(v any) any {
	if text, ok := v.(string); ok {
		return r.toRecordedIDs(text)
	}
	return v
}

func abbreviatedJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return truncated(string(text), 90)
}

// readDifferences reads the golden file and returns the reason for each difference in it.
func readDifferences(t *testing.T) map[string]string {
	t.Helper()
	known := make(map[string]string)
	file, err := os.Open(differences)
	if err != nil {
		if *update {
			return known
		}
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if line := lines.Text(); line != "" && line[0] != '#' {
			what, reason, ok := strings.Cut(line, "\t")
			if !ok || reason == "" {
				t.Fatalf("%s: a difference without a reason: %s", differences, line)
			}
			known[what] = reason
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return known
}

func writeDifferences(t *testing.T, found []string, known map[string]string) {
	t.Helper()
	var out strings.Builder
	out.WriteString("# Differences between the results of the mesh's agents and those of Claude Flow 3.43.0: one on each line, with the reason after a tab.\n")
	for _, what := range found {
		reason := known[what]
		if reason == "" {
			reason = unknownReason
		}
		fmt.Fprintf(&out, "%s\t%s\n", what, reason)
	}
	if err := os.WriteFile(differences, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
