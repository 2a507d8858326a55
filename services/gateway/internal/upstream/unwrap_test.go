//go:build unix

package upstream_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// unwrap sends an answer through the transport that [upstream.Unwrap] returns, and returns the result.
func unwrap(t *testing.T, method, message string, secrets ...string) *jsonrpc.Answer {
	t.Helper()
	answer, err := jsonrpc.ReadAnswer([]byte(message), jsonrpc.AnswerLimits())
	if err != nil {
		t.Fatalf("%s: %v", message, err)
	}
	f := &scripted{answer: func() (upstream.Answer, error) { return upstream.Answer{Message: answer}, nil }}
	conn, _, err := upstream.Unwrap(f, secrets).Open(t.Context(), ana, upstream.ListTools("", nil).Request("", nil))
	if err != nil {
		t.Fatal(err)
	}
	got, err := conn.Request(t.Context(), upstream.Request{Message: &jsonrpc.Message{Kind: jsonrpc.Request, Method: method}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return got.Message
}

func says(text string) string {
	quoted, _ := json.Marshal(text) // marshaling a string never fails
	return `{"jsonrpc":"2.0", "id":7,"result":{"content":[{"type":"text","text":` + string(quoted) + `}]}}`
}

func TestUnwrap_RestoresHiddenErrors(t *testing.T) {
	t.Parallel()
	for _, inner := range []string{
		`{"content":[{"type":"text","text":"{\"error\":\"no agent\"}"}],"isError":true}`,
		"{\n  \"content\": [],\n  \"isError\": true\n}",
		` {"isError":true,"content":[],"more":1.50,"_meta":{}} `,
		`{"isErr\u006fr":true,"content":[{"text":"\u00e9"}]}`,
	} {
		for _, outer := range []string{says(inner), strings.Replace(says(inner), `}]}}`, `}],"isError":false}}`, 1)} {
			got := unwrap(t, "tools/call", outer)
			if diff := cmp.Diff(`{"jsonrpc":"2.0", "id":7,"result":`+inner+`}`, string(got.Raw)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", outer, diff)
			}
			if !got.IsError {
				t.Errorf("%s is no error to who asks", got.Raw)
			}
		}
	}
}

func TestUnwrap_LeavesOtherAnswersUnchanged(t *testing.T) {
	t.Parallel()
	const hidden = `{"content":[],"isError":true}`
	text := `{"type":"text","text":"{\"content\":[],\"isError\":true}"}`
	result := func(fields string) string { return `{"jsonrpc":"2.0","id":7,"result":{` + fields + `}}` }
	for what, message := range map[string]string{
		"a success inside":            says(`{"content":[],"isError":false}`),
		"no word of an error":         says(`{"content":[]}`),
		"an error that is a text":     says(`{"content":[],"isError":"true"}`),
		"an error in another case":    says(`{"content":[],"IsError":true}`),
		"an error in two cases":       says(`{"content":[],"isError":true,"iserror":false}`),
		"an error, twice":             says(`{"content":[],"isError":true,"isError":true}`),
		"an error without content":    says(`{"isError":true}`),
		"content that is no list":     says(`{"content":{},"isError":true}`),
		"content that is null":        says(`{"content":null,"isError":true}`),
		"a list of errors":            says(`[` + hidden + `]`),
		"an error and more":           says(hidden + hidden),
		"an error in a sentence":      says("The answer was " + hidden),
		"half an error":               says(hidden[:20]),
		"an error within an error":    says(`{"result":` + hidden + `}`),
		"no text":                     says(""),
		"null":                        says("null"),
		"two texts":                   result(`"content":[` + text + `,` + text + `]`),
		"no content":                  result(`"content":[]`),
		"a picture":                   result(`"content":[` + strings.Replace(text, `"type":"text"`, `"type":"image"`, 1) + `]`),
		"a text with annotations":     result(`"content":[` + strings.Replace(text, `}"}`, `}","annotations":{}}`, 1) + `]`),
		"structured content, too":     result(`"content":[` + text + `],"structuredContent":{"a":1}`),
		"meta, too":                   result(`"content":[` + text + `],"_meta":{}`),
		"an error that says so":       result(`"content":[` + text + `],"isError":true`),
		"a result without content":    result(``),
		"content in another place":    result(`"contents":[` + text + `]`),
		"an error of the protocol":    `{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"{\"content\":[],\"isError\":true}"}}`,
		"text that is no text at all": result(`"content":[{"type":"text","text":` + hidden + `}]`),
	} {
		if got := unwrap(t, "tools/call", message); string(got.Raw) != message {
			t.Errorf("%s: %s became %s", what, message, got.Raw)
		}
	}
	if got := unwrap(t, "prompts/get", says(hidden)); string(got.Raw) != says(hidden) {
		t.Errorf("what no tool answered became %s", got.Raw)
	}
}

// A secret is redacted in a restored result even if escapes have hidden it in the outer string.
func TestUnwrap_RedactsSecretsInRestoredErrors(t *testing.T) {
	t.Parallel()
	got := unwrap(t, "tools/call", says(`{"content":[{"type":"text","text":"with hunter\u0032-hunter"}],"isError":true}`), "hunter2-hunter")
	if want := `{"content":[{"type":"text","text":"with [redacted]"}],"isError":true}`; string(got.Result.Of(got.Raw)) != want {
		t.Errorf("the result is %s, want %s", got.Result.Of(got.Raw), want)
	}
}

func TestUnwrap_ReturnsErrorOfRefusedSession(t *testing.T) {
	t.Parallel()
	f := &scripted{answer: func() (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }}
	if conn, _, err := upstream.Unwrap(f, nil).Open(t.Context(), ana, upstream.ListTools("", nil).Request("", nil)); err == nil || conn != nil {
		t.Errorf("a session that was refused is %v, %v", conn, err)
	}
}

// FuzzUnwrap compares Unwrap with encoding/json. An answer must be unchanged unless encoding/json finds that the result
// contains only a text that is itself an error result.
func FuzzUnwrap(f *testing.F) {
	f.Add(says(`{"content":[],"isError":true}`))
	f.Add(says(`{"content":[],"isError":false}`))
	f.Add(says(`{"content":[],"isError":true} x`))
	f.Add(strings.Replace(says(`{"content":[{"a":1}],"isError":true}`), `}]}}`, `}],"_meta":{}}}`, 1))
	f.Add(`{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":""}}`)
	f.Fuzz(func(t *testing.T, message string) {
		if a, err := jsonrpc.ReadAnswer([]byte(message), jsonrpc.AnswerLimits()); err != nil || a.Kind != jsonrpc.Response {
			return
		}
		got := string(unwrap(t, "tools/call", message).Raw)
		if got == message {
			return
		}
		var outer struct {
			Result map[string]any `json:"result"`
		}
		if err := json.Unmarshal([]byte(message), &outer); err != nil {
			t.Fatalf("%q became %q, but the standard package refuses it: %v", message, got, err)
		}
		content, _ := outer.Result["content"].([]any)
		if len(content) != 1 {
			t.Fatalf("%q became %q, but has %d contents", message, got, len(content))
		}
		piece, _ := content[0].(map[string]any)
		text, _ := piece["text"].(string)
		var inner, seen map[string]any
		if err := json.Unmarshal([]byte(text), &inner); err != nil || inner["isError"] != true {
			t.Fatalf("%q became %q, but its text is no error (%v)", message, got, err)
		}
		if _, ok := inner["content"].([]any); !ok {
			t.Fatalf("%q became %q, but its text has no content", message, got)
		}
		if err := json.Unmarshal([]byte(got), &seen); err != nil {
			t.Fatalf("%q became %q, which is none: %v", message, got, err)
		}
		if diff := cmp.Diff(any(inner), seen["result"]); diff != "" {
			t.Fatalf("%q became %q (-want +got):\n%s", message, got, diff)
		}
	})
}
