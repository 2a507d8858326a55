package guest

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

// host stands in for the host of a guest. It drives an agent as the exported function step does in WebAssembly.
type host struct {
	t     *testing.T
	agent *Agent
}

func newHost(t *testing.T, handle Handle) *host {
	t.Helper()
	h := &host{t, &Agent{fromHost: make(chan hostEnvelope), toHost: make(chan guestEnvelope)}}
	go h.agent.serve(handle)
	return h
}

// step sends the text of an envelope to the guest, and returns the text of the guest's envelope.
func (h *host) step(text string) string {
	h.t.Helper()
	var e hostEnvelope
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		h.t.Fatal(err)
	}
	h.agent.fromHost <- e
	out, err := json.Marshal(<-h.agent.toHost)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(out)
}

// expect sends an envelope to the guest, and checks the guest's envelope.
func (h *host) expect(text, want string) {
	h.t.Helper()
	if got := h.step(text); got != want {
		h.t.Errorf("after %s the guest requests\n%s, want\n%s", text, got, want)
	}
}

const (
	prompt = `{"kind":"prompt","input":"p"}`
	empty  = `{"kind":"effect_result","result":null}`
)

func TestServe_NumbersTheEnvelopesOfAllTurns(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(a *Agent, prompt string) (string, error) {
		if prompt == "fail" {
			return "ignored", errors.New("no such file")
		}
		if prompt == "last" {
			a.Done()
		}
		return strings.ToUpper(prompt), nil
	})
	h.expect(`{"kind":"start"}`, `{"kind":"finish","sequence":1}`)
	h.expect(`{"kind":"prompt","input":"hi"}`, `{"kind":"finish","sequence":2,"text":"HI"}`)
	h.expect(`{"kind":"prompt","input":"fail"}`, `{"kind":"fail","sequence":3,"text":"no such file"}`)
	h.expect(`{"kind":"cancel","reason":"late"}`, `{"kind":"finish","sequence":4}`)
	h.expect(`{"kind":"prompt","input":"last"}`, `{"kind":"finish","sequence":5,"text":"LAST","done":true}`)
	h.expect(`{"kind":"prompt","input":"hi"}`, `{"kind":"finish","sequence":6,"text":"HI"}`)
}

func TestServe_SetsTheFieldsOfTheAgentAtTheStart(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(*Agent, string) (string, error) { return "", nil })
	h.expect(`{"kind":"start","instructions":"i","max_turns":3,"model":"m:n","messages":[{"role":"assistant","content":"c","calls":[{"id":"1","name":"t","arguments":{"a":1}}]}],`+
		`"todos":[{"content":"x","status":"pending"}]}`, `{"kind":"finish","sequence":1}`)
	a := h.agent
	want := []Message{{Role: "assistant", Content: "c", Calls: []ModelCall{{ID: "1", Name: "t", Arguments: json.RawMessage(`{"a":1}`)}}}}
	if a.Instructions != "i" || a.MaxTurns != 3 || a.Model != "m:n" || !reflect.DeepEqual(a.Conversation, want) || !reflect.DeepEqual(a.Todos, []Todo{{"x", "pending"}}) {
		t.Errorf("the agent is %+v", a)
	}
}

// Each method requests its effect from the host and returns the host's result.
func TestAgent_MethodsRequestEffects(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		call         func(*Agent) (any, error)
		want, result string
		returns      any
	}{
		"Ask": {
			func(a *Agent) (any, error) {
				return a.Ask("p:m", []Message{{Role: "tool", Content: "c", CallID: "1"}}, ToolInfo{"t", "d", json.RawMessage(`{}`)})
			},
			`{"kind":"model","sequence":1,"model":"p:m","messages":[{"role":"tool","content":"c","call_id":"1"}],"tools":[{"name":"t","description":"d","input_schema":{}}]}`,
			`{"content":"x","calls":[{"id":"2","name":"t","arguments":{}}]}`, ModelAnswer{Content: "x", Calls: []ModelCall{{"2", "t", json.RawMessage(`{}`)}}},
		},
		"Call": {
			func(a *Agent) (any, error) { return a.Call("s", "t", map[string]int{"n": 1}) },
			`{"kind":"tool","sequence":1,"server":"s","tool":"t","arguments":{"n":1}}`,
			`{"text":"x","is_error":true,"structured":{"y":1}}`, ToolAnswer{Text: "x", IsError: true, Structured: json.RawMessage(`{"y":1}`)},
		},
		"Tools": {
			func(a *Agent) (any, error) { return a.Tools() }, `{"kind":"tools","sequence":1}`,
			`[{"server":"s","name":"t","description":"d","input_schema":{}}]`, []ServerTool{{"s", "t", "d", json.RawMessage(`{}`)}},
		},
		"ReadFile": {
			func(a *Agent) (any, error) { return a.ReadFile("f", 2, 3) },
			`{"kind":"fs","sequence":1,"op":"read_file","path":"f","offset":2,"limit":3}`, `"x"`, "x",
		},
		"WriteFile": {
			func(a *Agent) (any, error) { return nil, a.WriteFile("f", "c") },
			`{"kind":"fs","sequence":1,"op":"write_file","path":"f","content":"c"}`, `null`, nil,
		},
		"EditFile": {
			func(a *Agent) (any, error) { return nil, a.EditFile("f", "a", "b", true) },
			`{"kind":"fs","sequence":1,"op":"edit_file","path":"f","old_string":"a","new_string":"b","replace_all":true}`, `null`, nil,
		},
		"ListFiles": {func(a *Agent) (any, error) { return a.ListFiles() }, `{"kind":"fs","sequence":1,"op":"list_files"}`, `["a","b"]`, []string{"a", "b"}},
		"SetTodos": {
			func(a *Agent) (any, error) { return nil, a.SetTodos([]Todo{{"x", "completed"}}) },
			`{"kind":"todo","sequence":1,"todos":[{"content":"x","status":"completed"}]}`, `null`, nil,
		},
		"SetTodos without todos": {func(a *Agent) (any, error) { return nil, a.SetTodos(nil) }, `{"kind":"todo","sequence":1,"todos":[]}`, `null`, nil},
		"Emit":                   {func(a *Agent) (any, error) { return nil, a.Emit("x") }, `{"kind":"emit","sequence":1,"text":"x"}`, `null`, nil},
		"Sleep":                  {func(a *Agent) (any, error) { return nil, a.Sleep(1500 * time.Millisecond) }, `{"kind":"sleep","sequence":1,"milliseconds":1500}`, `null`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got any
			h := newHost(t, func(a *Agent, _ string) (_ string, err error) {
				got, err = tt.call(a)
				return "", err
			})
			h.expect(prompt, tt.want)
			h.expect(`{"kind":"effect_result","result":`+tt.result+`}`, `{"kind":"finish","sequence":2}`)
			if !reflect.DeepEqual(got, tt.returns) {
				t.Errorf("it returns %+v, want %+v", got, tt.returns)
			}
		})
	}
}

func TestAgent_EffectFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ answer, want string }{
		"the host refuses it":      {`{"kind":"effect_result","error":{"code":"denied_by_rule","message":"no"}}`, `{"kind":"fail","sequence":2,"text":"denied_by_rule: no"}`},
		"another type":             {`{"kind":"effect_result","result":{"x":1}}`, `{"kind":"fail","sequence":2,"text":"guest: read the result of fs: json: cannot unmarshal object into Go value of type string"}`},
		"another envelope":         {`{"kind":"start"}`, `{"kind":"fail","sequence":2,"text":"guest: got an envelope \"start\" instead of a result"}`},
		"the prompt was cancelled": {`{"kind":"cancel"}`, `{"kind":"fail","sequence":2,"text":"the prompt was cancelled"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, func(a *Agent, _ string) (string, error) { return a.ReadFile("f", 0, 0) })
			h.step(prompt)
			h.expect(tt.answer, tt.want)
		})
	}
}

// After a cancellation no effect is requested until the next prompt.
func TestAgent_RequestsNoEffectAfterACancellation(t *testing.T) {
	t.Parallel()
	var second error
	h := newHost(t, func(a *Agent, _ string) (string, error) {
		_ = a.Emit("1")
		second = a.Emit("2")
		return "stopped", nil
	})
	h.expect(prompt, `{"kind":"emit","sequence":1,"text":"1"}`)
	h.expect(`{"kind":"cancel"}`, `{"kind":"finish","sequence":2,"text":"stopped"}`)
	if !errors.Is(second, ErrCancelled) {
		t.Errorf("the second effect returns %v", second)
	}
	h.expect(prompt, `{"kind":"emit","sequence":3,"text":"1"}`)
	h.expect(empty, `{"kind":"emit","sequence":4,"text":"2"}`)
	h.expect(empty, `{"kind":"finish","sequence":5,"text":"stopped"}`)
	if second != nil {
		t.Errorf("the second effect returns %v", second)
	}
}

// An effect that does not fit in an envelope of 1 MiB is not requested, and does not get a sequence number.
func TestAgent_RequestsNoEffectThatIsTooLarge(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxEnvelope-len(`{"kind":"emit","sequence":0,"text":""}`))
	for name, tt := range map[string]struct {
		call func(*Agent) error
		want string
	}{
		"as long as possible": {func(a *Agent) error { return a.Emit(long) }, ""},
		"too long":            {func(a *Agent) error { return a.Emit(long + "x") }, "too_large: the envelope is not valid JSON, or has more than 1 MiB"},
		"no JSON": {func(a *Agent) error {
			_, err := a.Call("s", "t", func() {})
			return err
		}, "guest: write the arguments of t: json: unsupported type: func()"},
		"a schema that is no JSON": {func(a *Agent) error {
			_, err := a.Ask("", nil, ToolInfo{InputSchema: json.RawMessage("{")})
			return err
		}, "too_large: the envelope is not valid JSON, or has more than 1 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, func(a *Agent, _ string) (string, error) { return "", tt.call(a) })
			got := h.step(prompt)
			if tt.want == "" {
				if got != `{"kind":"emit","sequence":1,"text":"`+long+`"}` {
					t.Errorf("the guest requests %.60s", got)
				}
				h.expect(empty, `{"kind":"finish","sequence":2}`)
				return
			}
			if want, err := json.Marshal(guestEnvelope{Kind: "fail", Sequence: 1, Text: tt.want}); err != nil || got != string(want) {
				t.Errorf("the guest requests %.120s, want %s", got, want)
			}
		})
	}
}
