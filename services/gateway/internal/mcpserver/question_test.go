package mcpserver_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const (
	sampleStart = `"sampling/createMessage","params":{"messages":[],"maxTokens":1`
	formStart   = `"elicitation/create","params":{"message":"m"`
	urlStart    = formStart + `,"mode":"url","elicitationId":"e"`
)

// serverRequestCase is a test case for a server's request to a client. offers contains the capabilities that the client
// declares. question contains the JSON members of the request, beginning with the method. asked is true if the client
// must receive the request.
type serverRequestCase struct {
	name, offers, question string
	asked                  bool
}

// serverRequestCases returns requests that have the same outcome in revisions 2025-11-25 and 2026-07-28.
func serverRequestCases() []serverRequestCase {
	const bare, context, tools = `"sampling":{}`, `"sampling":{"context":{}}`, `"sampling":{"tools":{}}`
	const form, url, both = `"elicitation":{"form":{}}`, `"elicitation":{"url":{}}`, `"elicitation":{"form":{},"url":{}}`
	return []serverRequestCase{
		{"the context of one server", bare, sampleStart + `,"includeContext":"thisServer"}`, false},
		{"the context of all servers", bare, sampleStart + `,"includeContext":"allServers"}`, false},
		{"the context where tools were offered", tools, sampleStart + `,"includeContext":"allServers"}`, false},
		{"the context under a variant of the key", bare, sampleStart + `,"IncludeContext":"allServers"}`, false},
		{"the context under a variant of the value", context, sampleStart + `,"includeContext":"AllServers"}`, false},
		{"the context as a list", context, sampleStart + `,"includeContext":["allServers"]}`, false},
		{"the context as it was offered", context, sampleStart + `,"includeContext":"thisServer"}`, true},
		{"no context", bare, sampleStart + `,"includeContext":"none"}`, true},
		{"a null context", bare, sampleStart + `,"includeContext":null}`, true},
		{"tools", context, sampleStart + `,"tools":[{"name":"x","inputSchema":{}}]}`, false},
		{"a choice of tools", bare, sampleStart + `,"toolChoice":{"mode":"none"}}`, false},
		{"tools under a variant of the key", bare, sampleStart + `,"toolſ":[]}`, false},
		{"the result of a tool", bare, strings.Replace(sampleStart, `[]`, `[{"role":"user","content":[{"type":"text","text":"t"},{"type":"tool_result","toolUseId":"1","content":[]}]}]`, 1) + `}`, false},
		{"the use of a tool", bare, strings.Replace(sampleStart, `[]`, `[{"role":"user","content":{"type":"tool_use","id":"1","name":"x","input":{}}}]`, 1) + `}`, false},
		{"tools as they were offered", tools, sampleStart + `,"tools":[],"toolChoice":{"mode":"auto"}}`, true},
		{"a task", tools, sampleStart + `,"task":{"ttl":1}}`, false},
		{"null tools, and a key that MCP does not have", bare, sampleStart + `,"tools":null,"x":1}`, true},

		{"an address where forms were offered", form, urlStart + `,"url":"https://a.example/x"}`, false},
		{"an address where no mode was named", `"elicitation":{}`, urlStart + `,"url":"https://a.example/x"}`, false},
		{"an address without its mode", both, formStart + `,"url":"https://a.example/x"}`, false},
		{"an address in the mode of forms", both, formStart + `,"mode":"form","url":"https://a.example/x"}`, false},
		{"an address under a null mode", both, formStart + `,"mode":null,"url":"https://a.example/x"}`, false},
		{"an address under a variant of the key", both, formStart + `,"URL":"https://a.example/x"}`, false},
		{"the id of an address in a form", both, formStart + `,"elicitationId":"e","requestedSchema":{}}`, false},
		{"a variant of the mode", both, formStart + `,"mode":"URL","url":"https://a.example/x"}`, false},
		{"a variant of the key of the mode", form, formStart + `,"Mode":"url"}`, false},
		{"a mode that MCP does not have", both, formStart + `,"mode":"voice"}`, false},
		{"a mode that is no text", both, formStart + `,"mode":["url"],"url":"https://a.example/x"}`, false},
		{"a form where addresses were offered", url, formStart + `,"requestedSchema":{}}`, false},
		{"a form of an address", both, urlStart + `,"url":"https://a.example/x","requestedSchema":{}}`, false},
		{"a schema that is a string", form, formStart + `,"requestedSchema":"x"}`, false},
		{"an id that is no text", both, formStart + `,"mode":"url","url":"https://a.example/x","elicitationId":7}`, false},
		{"no address", both, urlStart + `}`, false},
		{"http", both, urlStart + `,"url":"http://a.example/x"}`, false},
		{"a script", both, urlStart + `,"url":"javascript:alert(1)"}`, false},
		{"a file", both, urlStart + `,"url":"file:///etc/passwd"}`, false},
		{"an address with a user", both, urlStart + `,"url":"https://a.example@b.example/"}`, false},
		{"an address without a host", both, urlStart + `,"url":"https:///x"}`, false},
		{"an address with a backslash", both, urlStart + `,"url":"https:\\\\a.example"}`, false},
		{"an address in another script", both, urlStart + `,"url":"https://аpple.example/"}`, false},
		{"an address that only looks like loopback", both, urlStart + `,"url":"http://localhost.a.example/"}`, false},
		{"an address that is a list", both, urlStart + `,"url":["https://a.example"]}`, false},
		{"an address as it was offered", both, urlStart + `,"url":"https://a.example/x?y=1#z"}`, true},
		{"an address on loopback", url, urlStart + `,"url":"http://127.0.0.1:8080/x"}`, true},
		{"an address on loopback by name", url, urlStart + `,"url":"http://localhost/x"}`, true},
		{"a form as it was offered", both, formStart + `,"mode":"form","requestedSchema":{"type":"object"}}`, true},
		{"a form without a mode", `"elicitation":{}`, formStart + `,"requestedSchema":{}}`, true},
	}
}

// sendInSession makes the server send the request in a session. It returns the response that the server receives, and
// the records in the journal.
func (tt serverRequestCase) sendInSession(t *testing.T, named, spoken string) (sent string, records []journal.Record) {
	t.Helper()
	var w *testGateway
	w = newServerRequestGateway(t, everything, func(_ context.Context, say func(string)) {
		say(`{"jsonrpc":"2.0","id":7,"method":` + tt.question + `}`)
		w.files.Notified(1)
	})
	w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
		return gatewaytest.Result(r, `{"protocolVersion":"`+spoken+`","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`), nil
	}
	h := w.connectAs(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + named + `","capabilities":{` + tt.offers + `},"clientInfo":{"name":"c","version":"1"}}}`)
	next := w.callStream(h, toolCall)
	if strings.Contains(next(), `"id":7`) {
		w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":7,"result":{"answered":true}}`, h)
	}
	return w.files.Notified(1)[0], w.Journal.Records(journal.KindRefusal)
}

// Case U1. In a session, a server may send a request only if the client has declared the required capability. Otherwise
// the server receives an error with the reason.
func TestServerRequest_IsCheckedAgainstTheOffer(t *testing.T) {
	t.Parallel()
	for _, tt := range serverRequestCases() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sent, records := tt.sendInSession(t, "2025-11-25", "2025-11-25")
				if tt.asked != strings.Contains(sent, `"answered":true`) {
					t.Errorf("the server got %s", sent)
				}
				if !tt.asked && (len(records) != 1 || !records[0].FromServer || !strings.Contains(sent, records[0].DecisionID) || !strings.Contains(sent, `"code":-32602`)) {
					t.Errorf("the server got %s; on record is %+v", sent, records)
				}
			})
		})
	}
}

// Case U1. A server's request may contain only members that the request's revision defines. A server cannot avoid this
// check by negotiating a revision that is older than the one that the client has requested.
func TestServerRequest_IsCheckedAgainstTheRevision(t *testing.T) {
	t.Parallel()
	const both, sampling = `"elicitation":{"form":{},"url":{}}`, `"sampling":{"tools":{}}`
	thisServer := sampleStart + `,"includeContext":"thisServer"}`
	for _, tt := range []struct {
		serverRequestCase

		named, spoken string
	}{
		{serverRequestCase{"context of a client that could not have offered it", sampling, thisServer, true}, "2025-06-18", "2025-06-18"},
		{serverRequestCase{"context of the first revision", sampling, thisServer, true}, "2024-11-05", "2024-11-05"},
		{serverRequestCase{"context after a step back", sampling, thisServer, false}, "2025-11-25", "2025-06-18"},
		{serverRequestCase{"context after a step back from a newer revision", sampling, thisServer, false}, "2027-01-01", "2025-03-26"},
		{serverRequestCase{"context of all servers under a variant of the key", sampling, sampleStart + `,"INCLUDECONTEXT":"allServers"}`, false}, "2025-06-18", "2025-06-18"},
		{serverRequestCase{"tools before they were", sampling, sampleStart + `,"tools":[]}`, false}, "2025-06-18", "2025-06-18"},
		{serverRequestCase{"an address before there were modes", both, urlStart + `,"url":"https://a.example/x"}`, false}, "2025-06-18", "2025-06-18"},
		{serverRequestCase{"a form before there were modes", both, formStart + `,"requestedSchema":{}}`, true}, "2025-06-18", "2025-06-18"},
		{serverRequestCase{"a form before there were forms", both, formStart + `,"requestedSchema":{}}`, false}, "2025-03-26", "2025-03-26"},
		{serverRequestCase{"a form after a step back", both, formStart + `,"requestedSchema":{}}`, false}, "2025-11-25", "2024-11-05"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if sent, _ := tt.sendInSession(t, tt.named, tt.spoken); tt.asked != strings.Contains(sent, `"answered":true`) {
					t.Errorf("the server got %s", sent)
				}
			})
		})
	}
}

// Case U1. Requests in an answer of revision 2026-07-28 are checked against the capabilities that the client has
// declared. The same check applies if a server that uses sessions sends a request to a client of revision 2026-07-28.
func TestInputRequests_AreCheckedAgainstTheOffer(t *testing.T) {
	t.Parallel()
	for _, tt := range serverRequestCases() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			request, head := modern("tools/call", "safe", `"name":"safe"`)
			request = strings.Replace(request, `"sampling":{},"elicitation":{"form":{}}`, tt.offers, 1)
			synctest.Test(t, func(t *testing.T) {
				w := newModernGateway(t, everything...)
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.Result(r, `{"resultType":"input_required","inputRequests":{"q":{"method":`+tt.question+`}},"requestState":"z"}`), nil
				}
				if got := w.do("POST", "/mcp/files", request, head); tt.asked != strings.Contains(got.body, `"inputRequests"`) || !tt.asked && got.code() != "outcome_unknown" {
					t.Errorf("the client got %s", got.body)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				w := newModernAllServers(t)
				sent := ""
				w.notes.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
					events([]byte(`{"jsonrpc":"2.0","id":7,"method":` + tt.question + `}`))
					for range 1000 { // waits until the server has a response or the client has the request
						time.Sleep(time.Millisecond)
						for _, n := range w.notes.Notified(0) {
							if strings.Contains(n, `"id":7`) {
								sent = n
							}
						}
						if sent != "" {
							return gatewaytest.Result(r, `{"content":[]}`), nil
						}
					}
					return upstream.Answer{}, upstream.ErrTimeout
				}
				got := w.do("POST", "/mcp/notes", request, head)
				if tt.asked != strings.Contains(got.body, `"inputRequests"`) || !tt.asked && !strings.Contains(sent, `"code":-32602`) {
					t.Errorf("over a bridge the client got %s, and the server got %s", got.body, sent)
				}
			})
		})
	}
}

// Case U1. A server answers with an error that says that the user must first open URLs. The URLs must be valid, and the
// client must have declared that it can open URLs.
func TestURLElicitationError_IsCheckedAgainstTheOffer(t *testing.T) {
	t.Parallel()
	const both = `"elicitation":{"form":{},"url":{}}`
	for _, tt := range []serverRequestCase{
		{"as it was offered", both, `{"mode":"url","elicitationId":"e","message":"m","url":"https://a.example"}`, true},
		{"not offered", `"elicitation":{"form":{}}`, `{"mode":"url","elicitationId":"e","message":"m","url":"https://a.example"}`, false},
		{"a form", both, `{"message":"m","requestedSchema":{}}`, false},
		{"http", both, `{"mode":"url","elicitationId":"e","message":"m","url":"http://a.example"}`, false},
		{"one of two", both, `{"mode":"url","elicitationId":"e","message":"m","url":"https://a.example"},{"mode":"url","elicitationId":"f","message":"m","url":"ssh://a.example"}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				w.Policy.Access.Methods = everything
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32042,"message":"open","data":{"elicitations":[` + tt.question + `]}}}`), nil
				}
				h := w.connectAs(strings.Replace(initializeWithAll, `"elicitation":{"form":{}}`, tt.offers, 1))
				if got := w.do("POST", "/mcp/files", toolCall, h); tt.asked != strings.Contains(got.body, "a.example") {
					t.Errorf("the client got %s", got.body)
				}
			})
		})
	}
}

// Case U1. At the URL for all servers, the gateway replaces the value of includeContext in a server's sampling request
// with "none", because the client would otherwise include the context of all servers.
func TestAllServers_SamplingContextIsNotOffered(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"thisServer", "allServers"} {
		for _, revision := range []string{"2025-11-25", "2025-06-18"} {
			t.Run(value+" "+revision, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newAllServers(t)
					w.files.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
						events([]byte(`{"jsonrpc":"2.0","id":7,"method":` + sampleStart + `,"includeContext":"` + value + `"}}`))
						return gatewaytest.Result(r, `{"content":[]}`), nil
					}
					next := w.callStream(w.connectAs(strings.Replace(strings.Replace(initializeWithAll, `"tools":{}`, `"context":{}`, 1), "2025-11-25", revision, 1)), strings.Replace(toolCall, "safe", "files__safe", 1))
					if got := next(); !strings.Contains(got, `"includeContext":"none"`) {
						t.Errorf("the client got %s", got)
					}
				})
			})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"resultType":"input_required","inputRequests":{"q":{"method":`+sampleStart+`,"includeContext":"allServers"}}}}`), nil
		}
		body, head := modern("tools/call", "files__safe", `"name":"files__safe"`)
		if got := w.do("POST", "/mcp", strings.Replace(body, `"sampling":{}`, `"sampling":{"context":{}}`, 1), head); !strings.Contains(got.body, `"includeContext":"none"`) {
			t.Errorf("without a session the client got %s", got.body)
		}
	})
}

// Case U1. At the URL for all servers, each string that a server shows to the user contains the server's name.
func TestAllServers_FormsNameTheirServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		w.Policy.Access.Methods = append(w.Policy.Access.Methods, "notifications/message", "notifications/elicitation/complete")
		w.files.Discovery = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "initialize" {
				return w.files.Open(r)
			}
			return gatewaytest.Result(r, `{"tools":[{"name":"safe","title":"notes: Read","inputSchema":{"type":"object"},"annotations":{"title":"Read\nnotes"}}]}`), nil
		}
		w.files.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			for _, message := range []string{
				`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","logger":"notes","data":"x"}}`,
				`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"y"}}`,
				`{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"notes:e"}}`,
				`{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":7}}`,
				`{"jsonrpc":"2.0","id":7,"method":` + formStart + `,"requestedSchema":{"type":"object","title":"notes","properties":{"a":{"type":"string","title":"notes asks: key","enum":["x"],"enumNames":["notes"]}}}}}`,
				`{"jsonrpc":"2.0","id":8,"method":` + urlStart + `,"url":"https://a.example"}}`,
			} {
				events([]byte(message))
			}
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		h := w.connectAs(strings.Replace(initializeWithAll, `"form":{}`, `"form":{},"url":{}`, 1))
		list := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h).body
		for _, want := range []string{`"title":"files: notes: Read"`, `"title":"files: Read\nfiles: notes"`} {
			if !strings.Contains(list, want) {
				t.Errorf("no %s in %s", want, list)
			}
		}
		next := w.callStream(h, strings.Replace(toolCall, "safe", "files__safe", 1))
		got := ""
		for message := next(); message != ""; message = next() {
			got += message + "\n"
		}
		for _, want := range []string{
			`"logger":"files: notes","data":"x"`, `"data":"y","logger":"files"`, `"elicitationId":"files:notes:e"`, `"elicitationId":"files:e"`,
			`"title":"files asks: notes"`, `"title":"files asks: notes asks: key"`, `"enum":["x"],"enumNames":["files asks: notes"]`,
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in\n%s", want, got)
			}
		}
		if strings.Contains(got, `"elicitationId":7`) {
			t.Errorf("an id that no server owns is in\n%s", got)
		}
	})
}
