package policy_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// dayCall is a call to a tool. refused is the code with which the policies of [dayPolicies] refuse the call. It is
// empty if they allow the call. unknown is true if the server has no such tool.
type dayCall struct {
	server, tool, args string
	refused            string
	unknown            bool
}

func (c dayCall) String() string { return fmt.Sprintf("%s/%s %.120s", c.server, c.tool, c.args) }

// dayAgent is an agent and the calls that it makes in a day.
type dayAgent struct {
	name, token string
	// together is true if the agent uses one URL for all servers.
	together bool
	calls    []dayCall
}

// maxEntities is the maximum number of create_entities calls that the policy allows each agent in a day.
const maxEntities = 40

// dayPolicies returns the policy entries that a person would change in the suggested policies, by server and tool.
func dayPolicies(root string) map[string]map[string]string {
	project := filepath.Join(root, "project")
	below := func(reason string) string {
		return fmt.Sprintf(`{action: allow, when: 'path.within(args.path, "%s")', otherwise: {action: deny, reason: %s}}`, project, reason)
	}
	return map[string]map[string]string{
		"files": {
			"write_file": below("files are written only below project"),
			"edit_file":  below("files are edited only below project"),
			"move_file":  "{action: deny, reason: ask a person to move files}",
			"read_text_file": fmt.Sprintf(`{action: deny, when: 'path.within(args.path, "%s")', reason: private files stay private, otherwise: {action: allow}}`,
				filepath.Join(root, "private")),
		},
		"memory": {
			"create_entities": fmt.Sprintf("{action: allow, rate_limit: {max: %d, window: 1d, per: [principal]}}", maxEntities),
			// These entries replace the suggested per-minute limits. Those limits depend on the speed of the machine,
			// because the simulated day has no pauses.
			"add_observations": "{action: allow}",
			"create_relations": "{action: allow}",
			"delete_entities":  "{action: require_approval, reason: the team needs its memory}",
		},
		"everything": {
			"echo":    "{action: allow, when: size(args.message) <= 2000, otherwise: {action: deny, reason: send short messages}}",
			"get-sum": "{action: allow, forward: strict}",
			"get-env": "{action: deny, reason: it contains secrets}",
		},
		"thinking":    {"sequentialthinking": "{action: allow}"},
		"claude-flow": {"wasm_agent_terminate": "{action: deny, reason: ask the owner to stop the agent}"},
	}
}

// dayTokens returns the tokens of the agents, for [stack.Options.Tokens].
func dayTokens() string {
	var out strings.Builder
	for _, name := range []string{"coder", "researcher", "assistant"} {
		fmt.Fprintf(&out, "    - {name: %s, token: %q, agent: %s, role: agent}\n", name, dayToken(name), name)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

func dayToken(name string) string { return "test-token-of-a-day-" + name + "-T5r4E3w2Q1" }

// dayAgents returns the agents with their calls. n is the total number of calls of all agents. seed determines which
// calls they make.
func dayAgents(root string, n int, seed uint64) []*dayAgent {
	var out []*dayAgent
	for i, habit := range []struct {
		name     string
		together bool
		tasks    []func(*dayWork) []dayCall
	}{
		{"coder", true, []func(*dayWork) []dayCall{readFiles, readFiles, editFile, editFile, think, writeOutside, moveFile, recall}},
		{"researcher", false, []func(*dayWork) []dayCall{recall, remember, remember, readFiles, echoText, echoText, calculate, think, forget}},
		{"assistant", false, []func(*dayWork) []dayCall{readFiles, readPrivate, writeOutside, guessTools, calculate, forget, remember, echoText, manageAgents}},
	} {
		w := &dayWork{Rand: rand.New(rand.NewPCG(seed, uint64(i))), root: root, agent: habit.name}
		a := &dayAgent{name: habit.name, token: dayToken(habit.name), together: habit.together}
		share := n/3 + map[bool]int{true: n % 3}[i == 0]
		for len(a.calls) < share {
			a.calls = append(a.calls, habit.tasks[w.IntN(len(habit.tasks))](w)...)
		}
		a.calls = limitEntities(a.calls[:share])
		out = append(out, a)
	}
	return out
}

// limitEntities marks the create_entities calls that exceed the agent's limit.
func limitEntities(calls []dayCall) []dayCall {
	n := 0
	for i, c := range calls {
		if c.tool != "create_entities" {
			continue
		}
		if n++; n > maxEntities {
			calls[i].refused = "rate_limited"
		}
	}
	return calls
}

// connect opens the agent's sessions. It returns one session for each server, or one session for all servers if the
// agent uses one URL for all of them.
func (a *dayAgent) connect(t *testing.T, s *stack.Stack) map[string]*stack.Client {
	t.Helper()
	out := make(map[string]*stack.Client)
	if a.together {
		out[""] = stack.Connect(t, s.AllServers(), a.token)
		return out
	}
	for _, c := range a.calls {
		if out[c.server] == nil {
			out[c.server] = stack.Connect(t, s.MCP(c.server), a.token)
		}
	}
	return out
}

// call makes a call and returns its result.
func (a *dayAgent) call(clients map[string]*stack.Client, c dayCall) (result, error) {
	client, name := clients[c.server], c.tool
	if a.together {
		client, name = clients[""], c.server+"__"+c.tool
	}
	resp, err := client.TryPost([]byte(stack.CallRequest(dayJSON("name", name, "arguments", json.RawMessage(c.args)))))
	if err != nil {
		return result{}, err
	}
	var body struct {
		Result *struct {
			IsError bool
			Meta    struct {
				Decision stack.Decision `json:"dev.sluice/decision"`
			} `json:"_meta"`
		}
		Error *struct{ Data json.RawMessage }
	}
	if err := json.Unmarshal(resp.Body, &body); err != nil {
		return result{}, fmt.Errorf("read %.200q: %w", resp.Body, err)
	}
	switch {
	case body.Result != nil:
		return result{body.Result.Meta.Decision.Code, body.Result.Meta.Decision.Rule, body.Result.IsError}, nil
	case body.Error != nil:
		var d stack.Decision
		_ = json.Unmarshal(body.Error.Data, &d) // errors of the server have other data
		return result{d.Code, d.Rule, true}, nil
	default:
		return result{}, fmt.Errorf("no result and no error: %.200q", resp.Body)
	}
}

// dayJSON returns a JSON object. In pairs, keys and values alternate.
func dayJSON(pairs ...any) string {
	object := make(map[string]any)
	for i := 0; i < len(pairs); i += 2 {
		object[pairs[i].(string)] = pairs[i+1]
	}
	raw, _ := json.Marshal(object) //nolint:errchkjson // the values are strings, numbers, lists and JSON
	return string(raw)
}
