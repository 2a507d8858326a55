package agents_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// chatRequest is a request of OpenAI's chat completions API.
type chatRequest struct {
	Messages []struct {
		Role      string `json:"role"`
		Content   string `json:"content"`
		ToolCalls []struct {
			ID       string `json:"id"`
			Function struct {
				Arguments string `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
		ToolCallID string `json:"tool_call_id"`
	} `json:"messages"`
}

// taskModel is a model provider. For the prompt `task N` it requests one call to raw__safe, unless the conversation
// already contains that call with its result. It answers some requests with a fault.
type taskModel struct {
	mu     sync.Mutex
	random *rand.Rand
	// faulty is the fraction of requests that the provider answers with a fault, from 0 to 1.
	faulty float64
	faults map[string]int
	// ids is the number of call ids that the provider has issued.
	ids int
}

// respond returns the server-sent events of a correct response.
func (m *taskModel) respond(q chatRequest) []string {
	task, done := "", map[string]bool{}
	calls := map[string]string{}
	for _, one := range q.Messages {
		for _, call := range one.ToolCalls {
			calls[call.ID] = call.Function.Arguments
		}
		switch one.Role {
		case "user":
			task = strings.TrimPrefix(one.Content, "task ")
		case "tool":
			done[calls[one.ToolCallID]] = strings.Contains(one.Content, "ran")
		}
	}
	arguments := fmt.Sprintf(`{"q":%q}`, task)
	if done[arguments] {
		return responseEvents(`{"role":"assistant","content":"done `+task+`"}`, "stop")
	}
	m.ids++
	quoted, _ := json.Marshal(arguments) //nolint:errchkjson // a string
	return responseEvents(fmt.Sprintf(`{"role":"assistant","tool_calls":[{"index":0,"id":"call-%d","type":"function","function":{"name":"raw__safe","arguments":%s}}]}`, m.ids, quoted), "tool_calls")
}

func responseEvents(delta, reason string) []string {
	return []string{
		fmt.Sprintf(`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":%s,"finish_reason":null}]}`, delta),
		fmt.Sprintf(`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":%q}],"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}}`, reason),
		"[DONE]",
	}
}

// modelFaults contains the faults of a provider by name. Each function receives the events of the correct response.
var modelFaults = map[string]func(w http.ResponseWriter, lines []string){
	"429":             func(w http.ResponseWriter, _ []string) { writeError(w, 429, "", "") },
	"429 Retry-After": func(w http.ResponseWriter, _ []string) { writeError(w, 429, "Retry-After", "0") },
	"429 Retry-After date": func(w http.ResponseWriter, _ []string) {
		writeError(w, 429, "Retry-After", "Thu, 01 Jan 2026 00:00:00 GMT")
	},
	"429 retry-after-ms": func(w http.ResponseWriter, _ []string) { writeError(w, 429, "Retry-After-Ms", "2") },
	"429 for an hour":    func(w http.ResponseWriter, _ []string) { writeError(w, 429, "Retry-After", "3600") },
	"500":                func(w http.ResponseWriter, _ []string) { writeError(w, 500, "", "") },
	"529":                func(w http.ResponseWriter, _ []string) { writeError(w, 529, "", "") },
	"408":                func(w http.ResponseWriter, _ []string) { writeError(w, 408, "", "") },
	"malformed":          func(w http.ResponseWriter, _ []string) { writeEvents(w, `{"id":`) },
	"nulls": func(w http.ResponseWriter, _ []string) {
		writeEvents(w, `null`, `{"id":null,"choices":[null]}`, `{"choices":null,"usage":null}`, "[DONE]")
	},
	"wrong types": func(w http.ResponseWriter, _ []string) {
		writeEvents(w, `{"id":7,"choices":[{"index":-1,"delta":"x"}]}`, `[]`, `"x"`)
	},
	"empty":   func(w http.ResponseWriter, _ []string) { writeEvents(w) },
	"cut off": func(w http.ResponseWriter, lines []string) { writeEvents(w, lines[0]); panic(http.ErrAbortHandler) },
	"no end":  func(w http.ResponseWriter, lines []string) { writeEvents(w, lines[0]) },
	"error in the stream": func(w http.ResponseWriter, lines []string) {
		writeEvents(w, lines[0], `{"error":{"message":"sorry","type":"server_error"}}`)
	},
	"error at first": func(w http.ResponseWriter, _ []string) {
		writeEvents(w, `{"error":{"message":"sorry","type":"server_error"}}`)
	},
	"reset": func(http.ResponseWriter, []string) { panic(http.ErrAbortHandler) },
	"slow": func(w http.ResponseWriter, lines []string) {
		for _, line := range lines {
			writeEvents(w, line)
			time.Sleep(10 * time.Millisecond) // simulates a slow provider; no result depends on it
		}
	},
}

func writeError(w http.ResponseWriter, status int, header, value string) {
	if header != "" {
		w.Header().Set(header, value)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprint(w, `{"error":{"message":"not now","type":"x"}}`)
}

func writeEvents(w http.ResponseWriter, lines ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, line := range lines {
		_, _ = fmt.Fprintf(w, "data: %s\n\n", line)
	}
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}

// ServeHTTP implements http.Handler.
func (m *taskModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q chatRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		writeError(w, 400, "", "")
		return
	}
	m.mu.Lock()
	lines := m.respond(q)
	fault := ""
	if m.random.Float64() < m.faulty {
		names := make([]string, 0, len(modelFaults))
		for name := range modelFaults {
			names = append(names, name)
		}
		slices.Sort(names)
		fault = names[m.random.IntN(len(names))]
		m.faults[fault]++
	}
	m.mu.Unlock()
	if fault != "" {
		modelFaults[fault](w, lines)
		return
	}
	writeEvents(w, lines...)
}

// startModelMesh starts a mesh that uses model as the model provider, and a server whose tools the agents may call.
func startModelMesh(t *testing.T, model http.Handler, provider string) *agentMesh {
	t.Helper()
	at := httptest.NewServer(model)
	t.Cleanup(at.Close)
	up := rawmcp.Start(t, rawmcp.Tools)
	mesh := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  agents: {grpc: {target: wasmagent}}", up.URL),
		Policy:  "version: 1\nname: p\ndefault: deny\ntools:\n  safe: {action: allow}\n  wasm_model_ask: {action: allow}\nrules:\n  - {name: agents, match: {tool: \"wasm_agent_*\"}, action: allow}\n",
		Extra:   fmt.Sprintf("agents:\n  person_day: {tokens: 1000000000}\n  providers:\n    local: {kind: openai, url: %q, key: the-key-of-the-provider, %s}", at.URL, provider),
	}))
	return &agentMesh{Stack: mesh.Stack, upstream: up, client: stack.Connect(t, mesh.MCP("agents"), stack.AgentToken)}
}

const taskAgent = `{"model":"local:m","maxTurns":1000,"manifest":{"tools":[{"server":"raw","tool":"safe"}],"models":[{"model":"local:*"}]}}`

// The model provider answers some requests with faults. The test checks that no call is lost or repeated in any turn.
// SLUICE_TURNS sets the number of turns, and SLUICE_SEED selects the faults.
func TestModelFaults_NoTurnLosesOrRepeatsACall(t *testing.T) {
	t.Parallel()
	turns, seed := positiveNumber(t, "SLUICE_TURNS", 100), positiveNumber(t, "SLUICE_SEED", 1)
	model := &taskModel{random: rand.New(rand.NewPCG(uint64(seed), 3)), faulty: 0.5, faults: map[string]int{}}
	a := startModelMesh(t, model, "tries: 2, backoff: 1ms")
	const agents = 4
	var work sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]int{}
	tasks := make([]string, agents)
	for i := range agents {
		work.Go(func() {
			client := stack.Connect(t, a.MCP("agents"), stack.AgentToken)
			id := textBetween(t, client.Call("wasm_agent_create", taskAgent).Text(t), `"id":"`, `"`)
			task := 0
			for range turns / agents {
				name := fmt.Sprintf("%d-%d", i, task)
				said := client.Call("wasm_agent_prompt", fmt.Sprintf(`{"agentId":%q,"input":"task %s"}`, id, name)).Text(t)
				if strings.Contains(said, "done "+name) {
					task++
					continue
				}
				code := "none"
				if _, rest, ok := strings.Cut(said, "model_"); ok {
					code, _, _ = strings.Cut("model_"+rest, ":")
				}
				mu.Lock()
				failed[code]++
				if code == "none" {
					t.Errorf("a turn failed without an error of the model: %s", said)
				}
				mu.Unlock()
			}
			tasks[i] = strconv.Itoa(task)
		})
	}
	work.Wait()
	made := map[string]int{}
	for _, call := range a.upstream.Calls("safe") {
		made[textBetween(t, string(call.Body), `"arguments":`, `}`)]++
	}
	for arguments, n := range made {
		if n > 1 {
			t.Errorf("the call with %s} was made %d times", arguments, n)
		}
	}
	model.mu.Lock()
	defer model.mu.Unlock()
	t.Logf("%d turns, seed %d: tasks done by each agent %v, %d calls; turns that failed %v; faults %v", turns, seed, tasks, len(made), failed, model.faults)
	if len(made) == 0 || len(failed) == 0 {
		t.Error("no call was made, or no turn failed: this run proves nothing")
	}
}

func positiveNumber(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a positive number", name, text)
	}
	return n
}

// If the model provider fails, the error of the turn must say which fault occurred. Tokens are charged only if the
// response was truncated or malformed, and the number of tokens is then an estimate.
func TestModelFaults_AreNamedAndCharged(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var fault func(w http.ResponseWriter)
	n := 0
	a := startModelMesh(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		n++
		answer := fault
		mu.Unlock()
		answer(w)
	}), "tries: 2, backoff: 1ms, prices: {m: {input: \"1000\", output: \"1000\"}}")
	first := responseEvents(`{"role":"assistant","content":"half an answer"}`, "stop")[0]
	for _, c := range []struct {
		name    string
		fault   func(w http.ResponseWriter)
		want    string
		tries   int
		charged bool
	}{
		{"rate limited", func(w http.ResponseWriter) { writeError(w, 429, "", "") }, "model_rate_limited: the provider of the model allows no more questions now: status 429 Too Many Requests: not now (asked 2 times)", 2, false},
		{"for an hour", func(w http.ResponseWriter) { writeError(w, 429, "Retry-After", "3600") }, "the provider requests a wait of 1h0m0s", 1, false},
		{"overloaded", func(w http.ResponseWriter) { writeError(w, 529, "", "") }, "model_overloaded: ", 2, false},
		{"rejected", func(w http.ResponseWriter) { writeError(w, 400, "", "") }, "model_rejected: ", 1, false},
		{"key", func(w http.ResponseWriter) { writeError(w, 401, "", "") }, "model_auth: ", 1, false},
		{"reset", func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, "model_unreachable: ", 2, false},
		{"broken", func(w http.ResponseWriter) { writeEvents(w, first); panic(http.ErrAbortHandler) }, "model_answer_broken: ", 1, true},
		{"malformed", func(w http.ResponseWriter) { writeEvents(w, `{"id":`) }, "model_answer_malformed: ", 1, true},
	} {
		id := textBetween(t, a.callAgentTool(t, "create", taskAgent), `"id":"`, `"`)
		mu.Lock()
		fault, n = c.fault, 0
		mu.Unlock()
		said := a.callAgentTool(t, "prompt", fmt.Sprintf(`{"agentId":%q,"input":"task x"}`, id))
		mu.Lock()
		asked := n
		mu.Unlock()
		if !strings.Contains(said, c.want) || strings.Contains(said, "outcome_unknown") || asked != c.tries {
			t.Errorf("%s: after %d requests the agent answers %s", c.name, asked, said)
		}
		state := a.callAgentTool(t, "state", fmt.Sprintf(`{"agentId":%q}`, id))
		if charged := strings.Contains(state, `"inputTokens"`) && !strings.Contains(state, `"inputTokens":"0"`); charged != c.charged {
			t.Errorf("%s: charged %v, want %v: %s", c.name, charged, c.charged, state)
		}
	}
}
