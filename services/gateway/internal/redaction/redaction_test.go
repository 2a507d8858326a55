package redaction_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/redaction"
	"github.com/sluice-mesh/sluice/services/internal/detect"
)

const toolsCall = "tools/call"

// list returns redactions of results. A text that begins with / is a path, and any other text is the name of a
// detector.
func list(texts ...string) (out []*policyv1.Redaction) {
	for _, text := range texts {
		one := &policyv1.Redaction{Target: policyv1.RedactionTarget_REDACTION_TARGET_RESULT, Detector: text}
		if strings.HasPrefix(text, "/") {
			one.Path, one.Detector = text, ""
		}
		out = append(out, one)
	}
	return out
}

func ofArguments(list []*policyv1.Redaction) []*policyv1.Redaction {
	for _, one := range list {
		one.Target = policyv1.RedactionTarget_REDACTION_TARGET_ARGUMENTS
	}
	return list
}

func read(t testing.TB, raw string) *jsonrpc.Answer {
	t.Helper()
	a, err := jsonrpc.ReadAnswer([]byte(raw), jsonrpc.AnswerLimits())
	if err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return a
}

// secret is a made-up AWS access key.
var secret = "AKIA" + "Q3EGRZ7TKMNVXW2P"

func TestAnswer_ReplacesValues(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		redact       []*policyv1.Redaction
		method       string
		result, want string
		counts       []redaction.Count
	}{
		"text": {
			list("email", "card"), toolsCall,
			`{"content":[{"type":"text","text":"mail a@example.com, card 4111 1111 1111 1111."}]}`,
			`{"content":[{"type":"text","text":"mail [redacted: email], card [redacted: card]."}]}`,
			[]redaction.Count{{Name: "card", N: 1}, {Name: "email", N: 1}},
		},
		"escapes hide nothing": {
			list("email"), toolsCall,
			`{"content":[{"type":"text","text":"a\u0040example.com b\u200b@exa\u200bmple.com"}]}`,
			`{"content":[{"type":"text","text":"[redacted: email] [redacted: email]"}]}`,
			[]redaction.Count{{Name: "email", N: 2}},
		},
		"path in structured content, and in a text that is JSON": {
			list("/user/phone", "/items/*/token"), toolsCall,
			`{"content":[{"type":"text","text":"{\"user\":{\"phone\":5,\"name\":\"n\"},\"items\":[{\"token\":\"x\"}]}"}],"structuredContent":{"user":{"phone":5,"name":"n"},"items":[{"token":"x"},{"token":null}]}}`,
			`{"content":[{"type":"text","text":"{\"user\":{\"phone\":\"[redacted: path]\",\"name\":\"n\"},\"items\":[{\"token\":\"[redacted: path]\"}]}"}],"structuredContent":{"user":{"phone":"[redacted: path]","name":"n"},"items":[{"token":"[redacted: path]"},{"token":"[redacted: path]"}]}}`,
			[]redaction.Count{{Name: "path", N: 5}},
		},
		"escapes of JSON in a text hide nothing": {
			list("email"), toolsCall,
			`{"content":[{"type":"text","text":"{\"a\":\"b\\u0040example.com\"}"}]}`,
			`{"content":[{"type":"text","text":"{\"a\":\"[redacted: email]\"}"}]}`,
			[]redaction.Count{{Name: "email", N: 1}},
		},
		"the name of a member helps": {
			list("secrets"), toolsCall,
			`{"structuredContent":{"aws_secret_access_key":"wJalr` + `XUtnFEMI9K7MDENGbPxRfiCYzq4hW","note":"fine"},"content":[]}`,
			`{"structuredContent":{"aws_secret_access_key":"[redacted: secrets]","note":"fine"},"content":[]}`,
			[]redaction.Count{{Name: "secrets", N: 1}},
		},
		"names of members": {
			list("email"), toolsCall,
			`{"structuredContent":{"a@example.com":1,"b@example.com":2},"content":[]}`,
			`{"structuredContent":{"[redacted: email]":1,"[redacted: email] 2":2},"content":[]}`,
			[]redaction.Count{{Name: "email", N: 2}},
		},
		"numbers": {
			list("card", "/structuredContent/n"), toolsCall,
			`{"structuredContent":{"pan":4111111111111111,"n":12,"other":4111111111111112},"content":[]}`,
			`{"structuredContent":{"pan":"[redacted: card]","n":"[redacted: path]","other":4111111111111112},"content":[]}`,
			[]redaction.Count{{Name: "card", N: 1}, {Name: "path", N: 1}},
		},
		"whole numbers in any form": {
			list("card"), toolsCall,
			`{"structuredContent":{"a":[4111111111111111.0,4.111111111111111e15,41111111111111110E-1,411111111111111100e-02,4.1111111111111111,4111111111111111e1,1e999,0e-5,-1.5e-3,4111111111111111.5]},"content":[]}`,
			`{"structuredContent":{"a":["[redacted: card]","[redacted: card]","[redacted: card]","[redacted: card]",4.1111111111111111,4111111111111111e1,1e999,0e-5,-1.5e-3,4111111111111111.5]},"content":[]}`,
			[]redaction.Count{{Name: "card", N: 4}},
		},
		"base64 only by paths": {
			list("secrets", "/content/1/data"), toolsCall,
			`{"content":[{"type":"image","mimeType":"image/png","data":"` + secret + `"},{"type":"image","mimeType":"image/png","data":"aGk="}]}`,
			`{"content":[{"type":"image","mimeType":"image/png","data":"` + secret + `"},{"type":"image","mimeType":"image/png","data":"W3JlZGFjdGVkOiBwYXRoXQ=="}]}`,
			[]redaction.Count{{Name: "path", N: 1}},
		},
		"parts of MCP keep their types": {
			list("/content/*", "/structuredContent", "/isError"), toolsCall,
			`{"content":[{"type":"text","text":"a"}],"structuredContent":{"a":1},"isError":false}`,
			`{"content":[{"type":"text","text":"[redacted: path]"}],"structuredContent":{"redacted":"[redacted: path]"},"isError":false}`,
			[]redaction.Count{{Name: "path", N: 2}},
		},
		"resources": {
			list("secrets"), "resources/read",
			`{"contents":[{"uri":"file:///a","text":"key ` + secret + `"},{"uri":"file:///b","blob":"` + secret + `"}]}`,
			`{"contents":[{"uri":"file:///a","text":"key [redacted: secrets]"},{"uri":"file:///b","blob":"` + secret + `"}]}`,
			[]redaction.Count{{Name: "secrets", N: 1}},
		},
		"path in JSON in a text that is JSON": {
			list("/token", "/*/token"), toolsCall,
			`{"content":[{"type":"text","text":"{\"body\":\"{\\\"token\\\":\\\"x\\\"}\"}"},{"type":"text","text":"[null,{\"token\":1}]"},{"type":"text","text":"[1] fine"}]}`,
			`{"content":[{"type":"text","text":"{\"body\":\"{\\\"token\\\":\\\"[redacted: path]\\\"}\"}"},{"type":"text","text":"[null,{\"token\":\"[redacted: path]\"}]"},{"type":"text","text":"[1] fine"}]}`,
			[]redaction.Count{{Name: "path", N: 2}},
		},
		"a text that begins like JSON": {
			list("/a"), toolsCall,
			`{"content":[{"type":"text","text":"{\"a\":1,\"a\":2}"},{"type":"text","text":"[INFO] fine"}]}`,
			`{"content":[{"type":"text","text":"[redacted: a text that begins like JSON and is not valid JSON, in which paths can't be found]"},{"type":"text","text":"[INFO] fine"}]}`,
			[]redaction.Count{{Name: "path", N: 1}},
		},
		"nothing is found": {
			list(append(detect.Names(), "/a/b")...), toolsCall,
			`{"content":[{"type":"text","text":"nothing \u0041 here"}]}`, `{"content":[{"type":"text","text":"nothing \u0041 here"}]}`, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := redaction.New(tt.redact, nil)
			if !redaction.Supports(tt.redact) {
				t.Fatal("the redactions are not supported")
			}
			got := r.Answer(tt.method, read(t, `{"jsonrpc":"2.0","id":7,"result":`+tt.result+`}`))
			if diff := cmp.Diff(`{"jsonrpc":"2.0","id":7,"result":`+tt.want+`}`, string(got.Raw)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.counts, r.Counts()); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnswer_ErrorKeepsItsCode(t *testing.T) {
	t.Parallel()
	r := redaction.New(list("email", "/code", "/user"), nil)
	got := r.Answer(toolsCall, read(t, `{"jsonrpc":"2.0","id":"x","error":{"code":-32000,"message":"no a@example.com","data":{"user":"a"}}}`))
	want := `{"jsonrpc":"2.0","id":"x","error":{"code":-32000,"message":"no [redacted: email]","data":{"user":"[redacted: path]"}}}`
	if string(got.Raw) != want {
		t.Errorf("%s", got.Raw)
	}
}

// A result that can't be searched is replaced as a whole, with a text that contains the reason.
func TestAnswer_UnsearchableResultIsReplaced(t *testing.T) {
	t.Parallel()
	many := strings.Repeat(`"a@example.com",`, 10_001)
	for name, tt := range map[string]struct {
		method, body, why string
		busy              error
	}{
		"a task":                  {toolsCall, `"result":{"resultType":"task","taskId":"1"}`, "it is a task", nil},
		"a task of 2025-11-25":    {toolsCall, `"result":{"task":{"taskId":"1"}}`, "it is a task", nil},
		"a task with escapes":     {toolsCall, `"result":{"t\u0061sk":{"t\u0061skId":"1"}}`, "it is a task", nil},
		"too many values":         {toolsCall, `"result":{"content":[],"structuredContent":{"a":[` + many[:len(many)-1] + `]}}`, "more than 10000 values", nil},
		"equal names":             {toolsCall, `"result":{"content":[],"structuredContent":{"a@example.com":1,"[redacted: email]":2}}`, "the replacements would make it invalid", nil},
		"no time":                 {toolsCall, `"result":{"content":[]}`, "the gateway had no time", errors.New("gone")},
		"no time, another method": {"resources/read", `"result":{"contents":[]}`, "the gateway had no time", errors.New("gone")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := redaction.New(list("email"), func(int) (func(), error) { return func() {}, tt.busy })
			got := r.Answer(tt.method, read(t, `{"jsonrpc":"2.0","id":7,`+tt.body+`}`))
			if !strings.Contains(string(got.Raw), "[redacted: the whole result, because "+tt.why) || strings.Contains(string(got.Raw), "@") {
				t.Errorf("%.300s", got.Raw)
			}
			if tt.method == toolsCall != got.IsError || tt.method == toolsCall == got.Error.Present() || string(got.ID.Of(got.Raw)) != "7" {
				t.Errorf("%.300s", got.Raw)
			}
			if diff := cmp.Diff([]redaction.Count{{Name: "whole", N: 1}}, r.Counts()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEvents_AreReplacedOrDropped(t *testing.T) {
	t.Parallel()
	busy := false
	r := redaction.New(list("email", "/progressToken"), func(int) (func(), error) {
		if busy {
			return nil, errors.New("gone")
		}
		return func() {}, nil
	})
	var got []string
	events := r.Events(func(message []byte) { got = append(got, string(message)) })
	progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"a@example.com","progress":4111111111111111,"message":"for a@example.com"}}`
	events([]byte(progress))
	events([]byte(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"for a@example.com"}}`))
	events([]byte(`{"jsonrpc":"2.0","method":"notifications/x"}`))
	busy = true
	events([]byte(progress))
	events([]byte(`{"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{"message":"for a@example.com"}}`))
	want := []string{
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"a@example.com","progress":4111111111111111,"message":"for [redacted: email]"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"for [redacted: email]"}}`,
		`{"jsonrpc":"2.0","method":"notifications/x"}`,
		`{"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Redactions never replace certain names and values that MCP defines. A server sends names and values that only
// resemble them. Redactions replace these names and values.
func TestMessages_OnlyMembersOfMCPAreKept(t *testing.T) {
	t.Parallel()
	for _, result := range []string{
		`{"content/*/type":{"x":"a@example.com"}}`,
		`{"content/*":{"data":"a@example.com"}}`,
		`{"content":{"*":{"type":"a@example.com","data":"a@example.com"}}}`,
		`{"content":[{"type":"a@example.com"},{"type":{"x":["a@example.com"]}}]}`,
		`{"content":[{"type":"image","mimeType":"image/png","data":"a@example.com"}]}`,
		`{"contents":[{"uri":"a:b","blob":"a@example.com"}]}`,
		`{"messages":[{"role":"a@example.com","content":{"type":"text","text":"x"}}]}`,
		`{"isError":"a@example.com","resultType":["a@example.com"]}`,
	} {
		got := redaction.New(list("email"), nil).Answer(toolsCall, read(t, `{"jsonrpc":"2.0","id":7,"result":`+result+`}`))
		if strings.Contains(string(got.Raw), "@") {
			t.Errorf("%s: %s", result, got.Raw)
		}
	}
	for _, params := range []string{
		`{"level":"a@example.com","progress":"a@example.com","total":["a@example.com"]}`, `{"progressToken":{"x":"a@example.com"},"requestId":["a@example.com"]}`,
		`{"progressToken":"a@example.com","requestId":"a@example.com"}`,
	} {
		got := redaction.New(list("email"), nil).Event([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":` + params + `}`))
		if strings.Contains(string(got), "@") || len(got) == 0 {
			t.Errorf("%s: %s", params, got)
		}
	}
}

// A value may be inside a member with a long name. The memory that is needed to redact the value does not depend on the
// length of that name.
func TestAnswer_LongNamesAreNotCopiedForEachValue(t *testing.T) { //nolint:paralleltest // other tests allocate, too
	a := read(t, `{"jsonrpc":"2.0","id":7,"result":{"`+strings.Repeat("k", 60<<10)+`":[`+strings.Repeat("1,", 20_000)+`1]}}`)
	r := redaction.New(list("email", "/*/*/x"), nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.Answer(toolsCall, a)
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 64<<20 {
		t.Errorf("an answer of %d bytes costs %d bytes", len(a.Raw), allocated)
	}
}

// Members that JSON-RPC does not define are removed, because redactions do not search them.
func TestMessages_LoseMembersThatAreNotSearched(t *testing.T) {
	t.Parallel()
	r := redaction.New(list("email"), nil)
	answer := read(t, `{"x":"a@example.com","jsonrpc":"2.0","id":1,"result":{"content":[]},"y":{"z":["a@example.com"]}}`)
	if got, want := string(r.Answer(toolsCall, answer).Raw), `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`; got != want {
		t.Errorf("answer %s, want %s", got, want)
	}
	event := r.Event([]byte(`{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"a@example.com"},"x":"a@example.com"}`))
	if want := `{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"[redacted: email]"}}`; string(event) != want {
		t.Errorf("event %s, want %s", event, want)
	}
	if diff := cmp.Diff([]redaction.Count{{Name: "email", N: 1}, {Name: redaction.Whole, N: 3}}, r.Counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestArguments_AreReplacedInTheRequest(t *testing.T) {
	t.Parallel()
	raw := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"send","arguments":{"to":"a@example.com","body":{"text":"x"}},"_meta":{"k":"a@example.com"}}}`
	m, err := jsonrpc.Parse([]byte(raw), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	r := redaction.New(ofArguments(list("email", "/body/text")), nil)
	sent, err := r.Arguments(m)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"send","arguments":{"to":"[redacted: email]","body":{"text":"[redacted: path]"}},"_meta":{"k":"a@example.com"}}}`
	if string(sent.Raw) != want || sent.Name != "send" {
		t.Errorf("%s", sent.Raw)
	}
	again, err := r.Arguments(sent)
	if err != nil || string(again.Raw) != want {
		t.Errorf("redacted again: %s, %v", again.Raw, err)
	}
	answer := read(t, `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a@example.com"}]}}`)
	if r.Answer(toolsCall, answer) != answer {
		t.Error("a redaction of arguments changes a result")
	}
	busy := redaction.New(ofArguments(list("email")), func(int) (func(), error) { return nil, errors.New("gone") })
	if _, err := busy.Arguments(m); err == nil {
		t.Error("arguments that can't be searched are sent")
	}
}

func TestSupports_RefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	for _, one := range []*policyv1.Redaction{
		{}, {Path: "/a", Detector: "email"}, {Detector: "later"}, {Path: "a"}, {Detector: "email", Target: 9},
	} {
		if redaction.Supports([]*policyv1.Redaction{{Detector: "email"}, one}) {
			t.Errorf("%v", one)
		}
	}
}

func TestWith_MakesTheRedactionsOfBothDecisions(t *testing.T) {
	t.Parallel()
	var none *redaction.Redactor
	if !none.Makes(nil) || none.Makes(list("email")) || none.With(nil, nil) != nil {
		t.Error("a nil redactor makes redactions")
	}
	r := redaction.New(list("email"), nil)
	if r.With(list("email"), nil) != r {
		t.Error("the same redactions give another redactor")
	}
	r.Answer(toolsCall, read(t, `{"jsonrpc":"2.0","id":1,"result":{"a":"a@example.com"}}`))
	both := r.With(list("/b"), nil)
	got := both.Answer(toolsCall, read(t, `{"jsonrpc":"2.0","id":1,"result":{"a":"a@example.com","b":1}}`))
	if string(got.Raw) != `{"jsonrpc":"2.0","id":1,"result":{"a":"[redacted: email]","b":"[redacted: path]"}}` {
		t.Errorf("%s", got.Raw)
	}
	if diff := cmp.Diff([]redaction.Count{{Name: "email", N: 2}, {Name: "path", N: 1}}, both.Counts()); diff != "" {
		t.Error(diff)
	}
}

// FuzzAnswer checks that a redacted answer is valid, has the same id as before, and contains nothing that a detector
// finds.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"content":[{"type":"text","text":"a@example.com 4111 1111 1111 1111 +14155552671 123-45-6789"}]}`,
		`{"structuredContent":{"a@example.com":[{"token":1}],"password":"aB3dE5fG7hJ9kL1mN3pQ"},"content":[]}`,
		`{"content":[{"type":"text","text":"{\"a\":[\"GB82 WEST 1234 5698 7654 32\"]}"}]}`,
	} {
		f.Add(seed, "/a/*/b")
	}
	f.Fuzz(func(t *testing.T, result, path string) {
		raw := `{"jsonrpc":"2.0","id":7,"result":` + result + `}`
		a, err := jsonrpc.ReadAnswer([]byte(raw), jsonrpc.AnswerLimits())
		redact := list(detect.Names()...)
		if one := list(path); redaction.Supports(one) && strings.HasPrefix(path, "/") {
			redact = append(redact, one...)
		}
		if err != nil || a.Kind != jsonrpc.Response || !a.Result.Present() {
			return
		}
		got := redaction.New(redact, nil).Answer(toolsCall, a)
		out, err := jsonrpc.ReadAnswer(got.Raw, jsonrpc.AnswerLimits())
		if err != nil || string(out.ID.Of(out.Raw)) != "7" {
			t.Fatalf("%v: %s", err, got.Raw)
		}
		checkClean(t, out)
	})
}

// checkClean reports an error if a detector finds something in a string of an answer's result. It ignores base64.
func checkClean(t *testing.T, a *jsonrpc.Answer) {
	t.Helper()
	set, err := detect.NewSet(detect.Names()...)
	if err != nil {
		t.Fatal(err)
	}
	raw := a.Result.Of(a.Raw)
	if bytes.Contains(raw, []byte(`data"`)) || bytes.Contains(raw, []byte(`blob"`)) || bytes.Contains(raw, []byte(`type"`)) || bytes.Contains(raw, []byte(`role"`)) {
		return // they may contain anything
	}
	dec := jsontext.NewDecoder(bytes.NewReader(raw))
	for {
		token, err := dec.ReadToken()
		if err != nil {
			return
		}
		if token.Kind() != '"' {
			continue
		}
		if hits, err := set.NewSearch(len(raw)).Find(token.String()); err != nil || len(hits) > 0 {
			t.Fatalf("%v, %v in %q", hits, err, token.String())
		}
	}
}

// BenchmarkAnswer measures the redaction of a 64 KiB answer with all detectors and one path.
func BenchmarkAnswer(b *testing.B) {
	for name, item := range map[string]string{
		"no hits": `{"id":17,"title":"The quick brown fox","state":"open","labels":["a","b"]}`,
		"hits":    `{"id":17,"title":"a@example.com","state":"4111111111111111","labels":["a","b"]}`,
	} {
		items := strings.Repeat(item+",", (64<<10)/len(item))
		a := read(b, fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"result":{"content":[],"structuredContent":{"items":[%s]}}}`, items[:len(items)-1]))
		r := redaction.New(list(append(detect.Names(), "/items/*/token")...), nil)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(a.Raw)))
			for b.Loop() {
				r.Answer(toolsCall, a)
			}
		})
	}
}
