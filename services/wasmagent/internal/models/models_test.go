package models_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
)

// question returns a question with all kinds of messages, and with a tool.
func question(model string) *wasmagentv1.AskModelRequest {
	message := func(role wasmagentv1.MessageRole, content string) *wasmagentv1.ModelMessage {
		return &wasmagentv1.ModelMessage{Role: role, Content: content}
	}
	call := message(wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT, "I look.")
	call.Calls = []*wasmagentv1.ModelCall{{Id: "c-1", Name: "demo__search", Arguments: `{"q":"tea"}`}}
	result := message(wasmagentv1.MessageRole_MESSAGE_ROLE_TOOL, "two notes")
	result.CallId = "c-1"
	return &wasmagentv1.AskModelRequest{
		Model: model, MaxTokens: new(int32(100)),
		Messages: []*wasmagentv1.ModelMessage{
			message(wasmagentv1.MessageRole_MESSAGE_ROLE_SYSTEM, "Be brief."), message(wasmagentv1.MessageRole_MESSAGE_ROLE_USER, "What is there?"), call, result,
		},
		Tools: []*wasmagentv1.ModelTool{{Name: "demo__search", Description: "Search.", InputSchema: `{"type":"object","properties":{"q":{"type":"string"}},"required":["q"],"additionalProperties":false}`}},
	}
}

// fakeProvider is a local provider that records the last question.
type fakeProvider struct {
	*httptest.Server
	path, key string
	asked     map[string]any
}

func newFakeProvider(t *testing.T, answer func(w http.ResponseWriter)) *fakeProvider {
	t.Helper()
	f := new(fakeProvider)
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.path, f.key, f.asked = r.URL.Path, r.Header.Get("Authorization")+r.Header.Get("X-Api-Key"), nil
		text, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(text, &f.asked)
		answer(w)
	}))
	t.Cleanup(f.Close)
	return f
}

func events(lines ...string) func(w http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, line := range lines {
			var kind struct {
				Type string `json:"type"`
			}
			if _ = json.Unmarshal([]byte(line), &kind); kind.Type != "" {
				_, _ = fmt.Fprintf(w, "event: %s\n", kind.Type)
			}
			_, _ = fmt.Fprintf(w, "data: %s\n\n", line)
		}
	}
}

var openAIEvents = []string{
	`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Two "},"finish_reason":null}]}`,
	`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"notes."},"finish_reason":null}]}`,
	`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c-2","type":"function","function":{"name":"demo__search","arguments":"{\"q\":"}}]},"finish_reason":null}]}`,
	`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"milk\"}"}}]},"finish_reason":null}]}`,
	`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`,
	`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}`,
	`[DONE]`,
}

var anthropicEvents = []string{
	`{"type":"message_start","message":{"id":"x","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":11,"output_tokens":1}}}`,
	`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
	`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Two "}}`,
	`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"notes."}}`,
	`{"type":"content_block_stop","index":0}`,
	`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"c-2","name":"demo__search","input":{}}}`,
	`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"q\":"}}`,
	`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"\"milk\"}"}}`,
	`{"type":"content_block_stop","index":1}`,
	`{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":7}}`,
	`{"type":"message_stop"}`,
}

// Each kind of provider gets the question in its own format. The answers of all providers have the same pieces, calls,
// tokens and cost.
func TestAsk_UsesFormatOfProvider(t *testing.T) {
	t.Setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/")
	t.Setenv("OPENAI_API_KEY", "of the environment")
	t.Setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1/")
	t.Setenv("ANTHROPIC_API_KEY", "of the environment")
	for kind, want := range map[string]struct {
		events    []string
		path, key string
		asked     string
	}{
		"openai": {openAIEvents, "/chat/completions", "Bearer secret", `{
			"model": "m", "max_completion_tokens": 100, "stream": true, "stream_options": {"include_usage": true},
			"messages": [
				{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is there?"},
				{"role": "assistant", "content": "I look.", "tool_calls": [{"id": "c-1", "type": "function", "function": {"name": "demo__search", "arguments": "{\"q\":\"tea\"}"}}]},
				{"role": "tool", "content": "two notes", "tool_call_id": "c-1"}],
			"tools": [{"type": "function", "function": {"name": "demo__search", "description": "Search.", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": false}}}]}`},
		"anthropic": {anthropicEvents, "/v1/messages", "secret", `{
			"model": "m", "max_tokens": 100, "stream": true, "system": [{"type": "text", "text": "Be brief."}],
			"messages": [
				{"role": "user", "content": [{"type": "text", "text": "What is there?"}]},
				{"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "c-1", "name": "demo__search", "input": {"q": "tea"}}]},
				{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c-1", "is_error": false, "content": [{"type": "text", "text": "two notes"}]}]}],
			"tools": [{"name": "demo__search", "description": "Search.", "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": false}}]}`},
	} {
		t.Run(kind, func(t *testing.T) {
			f := newFakeProvider(t, events(want.events...))
			m, err := models.New(map[string]models.Provider{"p": {Kind: kind, URL: f.URL, Key: "secret", Prices: map[string]models.Price{"m": {Input: "1.25", Output: "10"}}}}, 0)
			if err != nil {
				t.Fatal(err)
			}
			var pieces []string
			got, err := m.Ask(t.Context(), question("p:m"), func(piece string) { pieces = append(pieces, piece) })
			if err != nil {
				t.Fatal(err)
			}
			answer := models.Answer{
				Content: "Two notes.", Calls: []*wasmagentv1.ModelCall{{Id: "c-2", Name: "demo__search", Arguments: `{"q":"milk"}`}},
				Input: 11, Output: 7, Nanos: 11*1250 + 7*10_000,
			}
			if diff := cmp.Diff(answer, got, protocmp.Transform()); diff != "" {
				t.Errorf("the answer differs:\n%s", diff)
			}
			if strings.Join(pieces, "|") != "Two |notes." {
				t.Errorf("the pieces are %q", pieces)
			}
			var asked map[string]any
			if err := json.Unmarshal([]byte(want.asked), &asked); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(asked, f.asked); diff != "" || f.path != want.path || f.key != want.key {
				t.Errorf("the request to %s with the key %q differs:\n%s", f.path, f.key, diff)
			}
		})
	}
}

// Each failure of a provider is returned as an error of the right kind. A question is retried only if the provider has
// refused it.
func TestAsk_ReturnsKindOfFailure(t *testing.T) {
	t.Parallel()
	status := func(code int) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, `{"error":{"message":"the key sk-of-somebody is wrong","type":"x"}}`)
		}
	}
	for kind, whole := range map[string][]string{"openai": openAIEvents, "anthropic": anthropicEvents} {
		big := strings.ReplaceAll(whole[2], "Two ", strings.Repeat("x", 2<<20))
		if kind == "openai" {
			big = strings.ReplaceAll(whole[0], "Two ", strings.Repeat("x", 2<<20))
		}
		for name, c := range map[string]struct {
			answer func(w http.ResponseWriter)
			want   error
		}{
			"refused": {status(http.StatusBadRequest), models.ErrRejected},
			"key":     {status(http.StatusUnauthorized), models.ErrAuth},
			"busy":    {status(http.StatusTooManyRequests), models.ErrRateLimited},
			"broken":  {status(http.StatusInternalServerError), models.ErrOverloaded},
			"moved": {func(w http.ResponseWriter) {
				w.Header().Set("Location", "http://127.0.0.1:1/")
				w.WriteHeader(http.StatusTemporaryRedirect)
			}, models.ErrRejected},
			"cut":       {events(truncated(whole)...), models.ErrTruncated},
			"torn":      {events(whole[:3]...), models.ErrInterrupted},
			"empty":     {events(), models.ErrMalformed},
			"no event":  {events(`{"type":`), models.ErrMalformed},
			"too large": {events(append(append([]string(nil), whole[:2]...), append([]string{big}, whole[2:]...)...)...), nil},
			"never ends": {func(w http.ResponseWriter) {
				w.Header().Set("Content-Type", "text/event-stream")
				for range 40 {
					_, _ = io.WriteString(w, ": "+strings.Repeat("x", 1<<20)+"\n")
				}
			}, nil},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				n := 0
				f := newFakeProvider(t, func(w http.ResponseWriter) { n++; c.answer(w) })
				m, err := models.New(map[string]models.Provider{"p": {Kind: kind, URL: f.URL, Key: "sk-of-somebody", Retry: models.Retry{Tries: 3, Backoff: 1}}}, 0)
				if err != nil {
					t.Fatal(err)
				}
				attempts := 1
				if name == "busy" || name == "broken" {
					attempts = 3
				}
				_, err = m.Ask(t.Context(), question("p:m"), func(string) {})
				if err == nil || c.want != nil && !errors.Is(err, c.want) || n != attempts || strings.Contains(err.Error(), "sk-of") {
					t.Errorf("asked %d times: %v", n, err)
				}
			})
		}
	}
	cancelled, end := context.WithCancel(t.Context())
	end()
	m, err := models.New(map[string]models.Provider{"p": {Kind: "openai", URL: "http://127.0.0.1:1"}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Ask(cancelled, question("p:m"), nil); err == nil {
		t.Error("a caller whose context has ended gets an answer")
	}
	if _, err := m.Ask(t.Context(), question("q:m"), nil); !errors.Is(err, models.ErrNotConfigured) {
		t.Errorf("a provider that is not configured: %v", err)
	}
}

func truncated(whole []string) (out []string) {
	for _, line := range whole {
		out = append(out, strings.NewReplacer(`"finish_reason":"tool_calls"`, `"finish_reason":"length"`, `"stop_reason":"tool_use"`, `"stop_reason":"max_tokens"`).Replace(line))
	}
	return out
}

// The built-in model processes its prompt line by line and requests one call at a time.
func TestScript_FollowsLinesOfPrompt(t *testing.T) {
	t.Parallel()
	m, err := models.New(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	req := &wasmagentv1.AskModelRequest{Model: "script:lines", Messages: []*wasmagentv1.ModelMessage{
		{Role: wasmagentv1.MessageRole_MESSAGE_ROLE_USER, Content: "call old {}"}, {Role: wasmagentv1.MessageRole_MESSAGE_ROLE_TOOL, Content: "old"},
		{Role: wasmagentv1.MessageRole_MESSAGE_ROLE_USER, Content: "say one\ncall first {\"a\":1}\ncall second not json\n\nlast"},
	}}
	for i, want := range []string{`first {"a":1}`, `second {"input":"not json"}`} {
		got, err := m.Ask(t.Context(), req, func(string) { t.Error("an answer with a call has a piece of text") })
		if err != nil || len(got.Calls) != 1 || got.Calls[0].GetName()+" "+got.Calls[0].GetArguments() != want || got.Content != "" {
			t.Fatalf("the model asks for %v: %v, want %s", got, err, want)
		}
		req.Messages = append(req.Messages, &wasmagentv1.ModelMessage{Role: wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT, Calls: got.Calls},
			&wasmagentv1.ModelMessage{Role: wasmagentv1.MessageRole_MESSAGE_ROLE_TOOL, Content: fmt.Sprintf("result %d", i+1)})
	}
	got, err := m.Ask(t.Context(), req, func(string) {})
	if err != nil || got.Content != "one\nresult 1\nresult 2\nlast" || got.Nanos != 0 || got.Input == 0 || got.Output != 6 {
		t.Errorf("the model answers %+v: %v", got, err)
	}
}

func TestNew_RefusesInvalidPrices(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "x", "-1", "NaN", "1e30", "99999999999999999999"} {
		if _, err := models.New(map[string]models.Provider{"p": {Kind: "openai", Prices: map[string]models.Price{"m": {Input: bad, Output: "1"}}}}, 0); err == nil {
			t.Errorf("the price %q is accepted", bad)
		}
	}
	for text, want := range map[string]int64{"0": 0, "0.25": 250_000_000, "10": 10_000_000_000, "0.000000001": 1} {
		if got, err := models.Nanos(text); err != nil || got != want || models.Dollars(want) != text {
			t.Errorf("%s is %d, and back %s: %v", text, got, models.Dollars(want), err)
		}
	}
}

// Providers send calls in several forms: without an index, as a whole, or in small pieces. All of these forms are
// accepted.
func TestAsk_AcceptsCallsInAllForms(t *testing.T) {
	t.Parallel()
	openAI := func(calls ...string) (out []string) {
		for _, call := range calls {
			out = append(out, `{"choices":[{"index":0,"delta":{"tool_calls":[`+call+`]},"finish_reason":null}],"usage":null}`)
		}
		return append(out, `{"choices":[{"index":1,"delta":{"content":"another choice"}},{"index":0,"delta":{"content":null},"finish_reason":"stop"}]}`, "[DONE]", `{"choices":[{"delta":{"content":"after the end"}}]}`)
	}
	start := func(blocks ...string) []string {
		return append(append([]string{`{"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":4}}}`, `{"type":"ping"}`}, blocks...),
			`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}`, `{"type":"message_stop"}`, `{"type":"other"}`)
	}
	for name, tt := range map[string]struct {
		kind   string
		events []string
		want   string
		err    error
	}{
		"without an index":         {"openai", openAI(`{"id":"a","function":{"name":"f","arguments":"{}"}}`, `{"id":"b","function":{"name":"g","arguments":"{}"}}`), "a f {}, b g {}", nil},
		"in small pieces":          {"openai", openAI(`{"index":0,"id":"a","function":{"name":"f"}}`, `{"index":0,"function":{"arguments":"{"}}`, `{"index":1,"id":"b","function":{"name":"g"}}`, `{"index":0,"id":"a","function":{"arguments":"}"}}`), "a f {}, b g ", nil},
		"gaps between indices":     {"openai", openAI(`{"index":7,"id":"a","function":{"name":"f","arguments":"{}"}}`), "a f {}", nil},
		"negative index":           {"openai", openAI(`{"index":-1,"id":"a","function":{"name":"f","arguments":"{"}}`, `{"index":0,"function":{"arguments":"}"}}`), "a f {}", nil},
		"another id in each piece": {"openai", openAI(`{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}`, `{"index":0,"id":"b","function":{"arguments":"}"}}`), "a f {}", nil},
		"complete, then in pieces": {"openai", openAI(`{"id":"a","function":{"name":"f","arguments":"{}"}}`, `{"id":"b","function":{"name":"g","arguments":"{"}}`, `{"function":{"arguments":"}"}}`), "a f {}, b g {}", nil},
		"alternating":              {"anthropic", start(`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"f"}}`, `{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"b","name":"g"}}`, `{"type":"content_block_delta","index":0,"delta":{"partial_json":"{}"}}`, `{"type":"content_block_delta","index":1,"delta":{"partial_json":"[]"}}`), "a f {}, b g []", nil},
		"without arguments":        {"anthropic", start(`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"f","input":{}}}`), "a f {}", nil},
		"after other types":        {"anthropic", start(`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}`, `{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"a","name":"f"}}`, `{"type":"content_block_delta","index":1,"delta":{"partial_json":"{}"}}`), "a f {}", nil},
		"a block without a start":  {"anthropic", start(`{"type":"content_block_delta","index":0,"delta":{"text":"x"}}`), "", models.ErrMalformed},
		"a block twice":            {"anthropic", start(`{"type":"content_block_start","index":1,"content_block":{"type":"text"}}`), "", models.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeProvider(t, events(tt.events...))
			m, err := models.New(map[string]models.Provider{"p": {Kind: tt.kind, URL: f.URL + "/base/"}}, 0)
			if err != nil {
				t.Fatal(err)
			}
			got, err := m.Ask(t.Context(), question("p:m"), func(string) {})
			var calls []string
			for _, c := range got.Calls {
				calls = append(calls, c.GetId()+" "+c.GetName()+" "+c.GetArguments())
			}
			if strings.Join(calls, ", ") != tt.want || !errors.Is(err, tt.err) || got.Content != "" || !strings.HasPrefix(f.path, "/base/") || f.key != "" {
				t.Errorf("%q with the calls %q: %v; asked at %s with %q", got.Content, calls, err, f.path, f.key)
			}
			if tt.kind == "anthropic" && err == nil && (got.Input != 7 || got.Output != 5) {
				t.Errorf("%d tokens and %d", got.Input, got.Output)
			}
		})
	}
}

// Providers send error events in several forms. Each form is returned as a failure of the right kind.
func TestAsk_ReturnsErrorsInStreams(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		kind   string
		events []string
		want   error
	}{
		"first":                       {"openai", []string{`{"error":{"message":"slow down","type":"rate_limit_exceeded"}}`}, models.ErrRateLimited},
		"error is a text":             {"openai", []string{`{"error":"out of memory"}`}, models.ErrOverloaded},
		"after a piece":               {"openai", []string{openAIEvents[0], `{"error":{"message":"gone"}}`}, models.ErrInterrupted},
		"error is null":               {"openai", append([]string{`{"error":null,"choices":[]}`}, openAIEvents...), nil},
		"after a ping":                {"anthropic", []string{`{"type":"ping"}`, `{"type":"error","error":{"type":"overloaded_error","message":"busy"}}`}, models.ErrOverloaded},
		"error type of the other API": {"anthropic", []string{`{"type":"error","error":{"type":"overloaded_error","message":"busy"}}`}, models.ErrOverloaded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeProvider(t, events(tt.events...))
			m, err := models.New(map[string]models.Provider{"p": {Kind: tt.kind, URL: f.URL, Retry: models.Retry{Tries: 1}}}, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.Ask(t.Context(), question("p:m"), func(string) {}); !errors.Is(err, tt.want) || err == nil != (tt.want == nil) {
				t.Errorf("the question ends with %v", err)
			}
		})
	}
}
