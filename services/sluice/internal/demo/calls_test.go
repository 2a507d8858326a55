package demo_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/demo"
)

const (
	traceA = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	traceB = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
)

func TestStats_CountEveryCall(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	session := connectHTTP(t, s, nil)
	mustCall(t, session, demo.GetNote, map[string]any{"id": "note-1"})
	call(t, session, demo.GetNote, map[string]any{"id": "note-9"}) // the tool fails
	call(t, session, demo.GetNote, nil)                            // the schema refuses the call
	if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "drop_everything"}); err == nil {
		t.Error("a tool that does not exist was called")
	}
	if _, err := session.ListTools(t.Context(), nil); err != nil {
		t.Error(err)
	}
	got := s.Stats()
	if got.Calls != 4 || got.Tools[demo.GetNote] != 3 || got.Unknown != 1 {
		t.Errorf("%d calls, %d of %s, %d unknown; want 4, 3, 1", got.Calls, got.Tools[demo.GetNote], demo.GetNote, got.Unknown)
	}
	names := make([]string, 0, len(got.Recent))
	for _, c := range got.Recent {
		names = append(names, c.Tool)
	}
	want := []string{demo.GetNote, demo.GetNote, demo.GetNote, "drop_everything"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("recent calls (-want +got):\n%s", diff)
	}
}

func TestStats_CountPostsThatAreNotCalls(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	url := serve(t, s)
	post(t, url, "no JSON")
	post(t, url, runReport, "Mcp-Session-Id", "nope")
	if got := s.Stats(); got.Posts != 2 || got.Calls != 0 {
		t.Errorf("%d posts, %d calls; want 2, 0", got.Posts, got.Calls)
	}
}

func TestStats_StoreTheLastThousandCalls(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	session := connectStdio(t, s, nil)
	for range 2 {
		mustCall(t, session, demo.ListAccounts, nil)
	}
	long := strings.Repeat("x", 1000)
	for range 1000 {
		if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: long}); err == nil {
			t.Fatal("a tool that does not exist was called")
		}
	}
	mustCall(t, session, demo.ListNotes, nil)
	got := s.Stats()
	if len(got.Recent) != 1000 || got.Calls != 1003 || got.Unknown != 1000 {
		t.Fatalf("%d recent of %d calls, %d unknown; want 1000 of 1003, 1000", len(got.Recent), got.Calls, got.Unknown)
	}
	if first, last := got.Recent[0].Tool, got.Recent[999].Tool; first != long[:128] || last != demo.ListNotes {
		t.Errorf("the oldest recent call is of %q, and the newest of %q", first, last)
	}
	if !slices.IsSortedFunc(got.Recent, func(a, b demo.Call) int { return a.Time.Compare(b.Time) }) {
		t.Error("recent calls are not in the order of their times")
	}
}

type withHeader struct{ name, value string }

func (h withHeader) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set(h.name, h.value)
	return http.DefaultTransport.RoundTrip(req)
}

func TestStats_RecordTheTraceOfACall(t *testing.T) {
	t.Parallel()
	const idA, idB = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"
	tests := map[string]struct {
		header string
		meta   mcp.Meta
		want   demo.Call
		id     string
	}{
		"none":                           {"", nil, demo.Call{}, ""},
		"in the HTTP header":             {traceA, nil, demo.Call{Traceparent: traceA, Header: traceA}, idA},
		"in the message":                 {"", mcp.Meta{"traceparent": traceB}, demo.Call{Traceparent: traceB}, idB},
		"the message before the header":  {traceA, mcp.Meta{"traceparent": traceB}, demo.Call{Traceparent: traceB, Header: traceA}, idB},
		"text that is no trace context":  {"", mcp.Meta{"traceparent": "x"}, demo.Call{Traceparent: "x"}, ""},
		"a number is not a trace at all": {traceA, mcp.Meta{"traceparent": 7}, demo.Call{Traceparent: traceA, Header: traceA}, idA},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, nil)
			session := connect(t, &mcp.StreamableClientTransport{
				Endpoint:   serve(t, s),
				HTTPClient: &http.Client{Transport: withHeader{"Traceparent", tt.header}},
			}, nil)
			params := &mcp.CallToolParams{Name: demo.ListAccounts, Meta: tt.meta}
			if _, err := session.CallTool(t.Context(), params); err != nil {
				t.Fatal(err)
			}
			got := s.Stats().Recent[0]
			tt.want.Tool = demo.ListAccounts
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(demo.Call{}, "Time")); diff != "" {
				t.Errorf("call (-want +got):\n%s", diff)
			}
			if got.TraceID() != tt.id {
				t.Errorf("trace id %q, want %q", got.TraceID(), tt.id)
			}
		})
	}
}

func TestLog_HasEachCallOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s, err := demo.New(demo.DefaultConfig(), demo.Deps{Log: slog.New(slog.NewJSONHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	session := connectStdio(t, s, nil)
	call(t, session, demo.GetNote, map[string]any{"id": "note-1"})
	_, _ = session.CallTool(t.Context(), &mcp.CallToolParams{Name: "nope", Meta: mcp.Meta{"traceparent": traceA}}) // fails, because the tool is unknown
	call(t, session, demo.GetNote, map[string]any{"id": "note-9"})

	type line struct {
		Msg, Tool, Outcome, Traceparent string
		TraceID                         string `json:"trace_id"`
	}
	want := []line{
		{"tool call", demo.GetNote, "ok", "", ""},
		{"tool call", "nope", "error", traceA, "0af7651916cd43dd8448eb211c80319c"},
		{"tool call", demo.GetNote, "tool_error", "", ""},
	}
	var got []line
	for text := range strings.Lines(log.String()) {
		var l line
		if err := json.Unmarshal([]byte(text), &l, json.MatchCaseInsensitiveNames(true)); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		got = append(got, l)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

func TestRunReport_ReportsProgressIfRequested(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var told []float64
	arrived := make(chan struct{}, 100)
	opts := &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, req.Params.Progress)
			arrived <- struct{}{}
		},
	}
	session := connectHTTP(t, newServer(t, nil), opts)
	for range 22 { // 25 notes with the starting notes, which are read in steps of 3
		mustCall(t, session, demo.CreateNote, map[string]any{"title": "Tea"})
	}
	mustCall(t, session, demo.RunReport, nil)
	params := &mcp.CallToolParams{Name: demo.RunReport}
	params.SetProgressToken("p1")
	if _, err := session.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	want := []float64{3, 6, 9, 12, 15, 18, 21, 24, 25}
	for range want {
		select {
		case <-arrived:
		case <-time.After(10 * time.Second):
			t.Fatal("too few progress notifications arrived")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}

func TestRunReport_SavesTheReportAsANote(t *testing.T) {
	t.Parallel()
	session := connectHTTP(t, newServer(t, nil), nil)
	var report struct {
		Notes   int
		SavedAs string
	}
	text := mustCall(t, session, demo.RunReport, map[string]any{"save": true, "top": 1})
	if err := json.Unmarshal([]byte(text), &report, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	if report.SavedAs != "note-4" || report.Notes != 3 {
		t.Errorf("report %s, want 3 notes read and note-4 written", text)
	}
	if kept := mustCall(t, session, demo.GetNote, map[string]any{"id": "note-4"}); !strings.Contains(kept, "3 notes, ") {
		t.Errorf("the saved report reads %s", kept)
	}
}
