package demo_test

import (
	"context"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/demo"
)

// newServer creates a server with the default configuration. If the parameter change is not nil, it is a function that
// may modify the configuration.
func newServer(t *testing.T, change func(*demo.Config)) *demo.Server {
	t.Helper()
	cfg := demo.DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	s, err := demo.New(cfg, demo.Deps{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func connectHTTP(t *testing.T, s *demo.Server, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	web := httptest.NewServer(s.Handler())
	t.Cleanup(web.Close)
	return connect(t, &mcp.StreamableClientTransport{Endpoint: web.URL + "/mcp"}, opts)
}

// connectStdio serves s on a pair of pipes and connects the SDK's client to it.
func connectStdio(t *testing.T, s *demo.Server, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	serverIn, clientOut := io.Pipe()
	clientIn, serverOut := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- s.ServeStdio(context.WithoutCancel(t.Context()), serverIn, serverOut) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Errorf("ServeStdio: %v", err)
		}
	})
	return connect(t, &mcp.IOTransport{Reader: clientIn, Writer: clientOut}, opts)
}

func connect(t *testing.T, over mcp.Transport, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "demo-test", Version: "1"}, opts)
	session, err := client.Connect(t.Context(), over, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// call calls a tool and returns the text of the result. It also reports whether the tool failed.
func call(t *testing.T, session *mcp.ClientSession, tool string, args map[string]any) (text string, failed bool) {
	t.Helper()
	params := &mcp.CallToolParams{Name: tool}
	if args != nil { // a nil map would be sent as null
		params.Arguments = args
	}
	res, err := session.CallTool(t.Context(), params)
	if err != nil {
		t.Fatalf("call %s: %v", tool, err)
	}
	if len(res.Content) != 1 {
		t.Fatalf("call %s: %d pieces of content, want 1", tool, len(res.Content))
	}
	return res.Content[0].(*mcp.TextContent).Text, res.IsError
}

func mustCall(t *testing.T, session *mcp.ClientSession, tool string, args map[string]any) string {
	t.Helper()
	text, failed := call(t, session, tool, args)
	if failed {
		t.Fatalf("%s(%v) failed: %s", tool, args, text)
	}
	return text
}

func TestTools_WorkOverEveryTransport(t *testing.T) {
	t.Parallel()
	type transport func(*testing.T, *demo.Server, *mcp.ClientOptions) *mcp.ClientSession
	tests := map[string]struct {
		change  func(*demo.Config)
		connect transport
	}{
		"HTTP with sessions and event streams": {nil, connectHTTP},
		"HTTP with sessions and JSON answers":  {func(c *demo.Config) { c.JSONResponse = true }, connectHTTP},
		"HTTP without sessions":                {func(c *demo.Config) { c.Stateless = true }, connectHTTP},
		"stdio":                                {nil, connectStdio},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, tt.change)
			session := tt.connect(t, s, nil)

			created := mustCall(t, session, demo.CreateNote, map[string]any{"title": "Tea", "body": "Earl Grey"})
			if want := `{"body":"Earl Grey","id":"note-4","title":"Tea"}`; created != want {
				t.Errorf("created %s, want %s", created, want)
			}
			if got := mustCall(t, session, demo.GetNote, map[string]any{"id": "note-4"}); got != created {
				t.Errorf("read %s, want %s", got, created)
			}
			mustCall(t, session, demo.DeleteNote, map[string]any{"id": "note-4"})
			if text, failed := call(t, session, demo.GetNote, map[string]any{"id": "note-4"}); !failed {
				t.Errorf("a deleted note is still read: %s", text)
			}
			mustCall(t, session, demo.Refund, map[string]any{"account": "ana", "amount": "12.50"})
			wantAccounts := `{"accounts":[{"balance":"32.50","name":"ana"},{"balance":"0.00","name":"ben"},{"balance":"987.50","name":"merchant"}]}`
			if got := mustCall(t, session, demo.ListAccounts, nil); got != wantAccounts {
				t.Errorf("accounts %s, want %s", got, wantAccounts)
			}
			want := map[string]uint64{
				demo.CreateNote: 1, demo.GetNote: 2, demo.DeleteNote: 1, demo.Refund: 1, demo.ListAccounts: 1,
				demo.ListNotes: 0, demo.RunReport: 0,
			}
			if diff := cmp.Diff(want, s.Stats().Tools); diff != "" {
				t.Errorf("calls by tool (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCreateNote_NeverReusesAnID(t *testing.T) {
	t.Parallel()
	session := connectHTTP(t, newServer(t, nil), nil)
	mustCall(t, session, demo.DeleteNote, map[string]any{"id": "note-3"})
	created := mustCall(t, session, demo.CreateNote, map[string]any{"title": "Tea"})
	if !strings.Contains(created, `"note-4"`) {
		t.Errorf("after note-3 of 3 was deleted the next note is %s, want note-4", created)
	}
}

func TestListNotes_ReturnsPages(t *testing.T) {
	t.Parallel()
	session := connectHTTP(t, newServer(t, nil), nil)
	tests := map[string]struct {
		args map[string]any
		want []string
	}{
		"all by default":          {nil, []string{"note-1", "note-2", "note-3"}},
		"from the middle":         {map[string]any{"offset": 1, "limit": 1}, []string{"note-2"}},
		"nothing beyond the end":  {map[string]any{"offset": 7}, []string{}},
		"less than was asked for": {map[string]any{"offset": 2, "limit": 1000}, []string{"note-3"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var page struct {
				Notes []struct{ ID, Title string }
				Total int
			}
			text := mustCall(t, session, demo.ListNotes, tt.args)
			if err := json.Unmarshal([]byte(text), &page, json.MatchCaseInsensitiveNames(true)); err != nil {
				t.Fatal(err)
			}
			ids := make([]string, 0, len(page.Notes))
			for _, n := range page.Notes {
				ids = append(ids, n.ID)
			}
			if diff := cmp.Diff(tt.want, ids); diff != "" || page.Total != 3 {
				t.Errorf("total %d, want 3; ids (-want +got):\n%s", page.Total, diff)
			}
		})
	}
}

func TestTools_ErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	session := connectHTTP(t, newServer(t, func(c *demo.Config) { c.MaxNotes = 3 }), nil)
	tests := map[string]struct {
		tool string
		args map[string]any
		want string
	}{
		"the book is full":              {demo.CreateNote, map[string]any{"title": "one more"}, "has 3 notes; delete one with delete_note"},
		"no room to save a report":      {demo.RunReport, map[string]any{"save": true}, "save the report: the notebook is full"},
		"a note that does not exist":    {demo.GetNote, map[string]any{"id": "note-9"}, `no note "note-9" exists: call list_notes`},
		"nothing to delete":             {demo.DeleteNote, map[string]any{"id": "note-9"}, `no note "note-9" exists: call list_notes`},
		"a title that is missing":       {demo.CreateNote, map[string]any{"body": "x"}, "title"},
		"an argument that is not known": {demo.GetNote, map[string]any{"id": "note-1", "x": 1}, `"x"`},
		"a number for an amount":        {demo.Refund, map[string]any{"account": "ana", "amount": 5}, "amount"},
		"an amount of nothing":          {demo.Refund, map[string]any{"account": "ana", "amount": "0.00"}, "not a sum of money above 0"},
		"a negative amount":             {demo.Refund, map[string]any{"account": "ana", "amount": "-5"}, "amount"},
		"more than there is":            {demo.Refund, map[string]any{"account": "ana", "amount": "1000.01"}, "nothing was moved"},
		"an account that doesn't exist": {demo.Refund, map[string]any{"account": "eve", "amount": "1"}, `no customer account "eve"`},
		"a refund to the merchant":      {demo.Refund, map[string]any{"account": "merchant", "amount": "1"}, "no customer account"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			text, failed := call(t, session, tt.tool, tt.args)
			if !failed || !strings.Contains(text, tt.want) {
				t.Errorf("failed %v with %q, want true with %q in it", failed, text, tt.want)
			}
		})
	}
	if got := mustCall(t, session, demo.ListAccounts, nil); !strings.Contains(got, `"1000.00"`) {
		t.Errorf("a refused refund moved money: %s", got)
	}
}

func TestTools_HaveDescriptionsAndAnnotations(t *testing.T) {
	t.Parallel()
	list, err := connectHTTP(t, newServer(t, nil), nil).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Tools) != 7 {
		t.Errorf("%d tools, want 7", len(list.Tools))
	}
	readOnly := map[string]bool{demo.ListNotes: true, demo.GetNote: true, demo.ListAccounts: true}
	destructive := map[string]bool{demo.DeleteNote: true, demo.Refund: true}
	for _, tool := range list.Tools {
		if tool.Title == "" || tool.Description == "" || tool.OutputSchema == nil || tool.Annotations == nil {
			t.Errorf("%s lacks a title, a description, an output schema or annotations", tool.Name)
			continue
		}
		hint := tool.Annotations
		if hint.ReadOnlyHint != readOnly[tool.Name] {
			t.Errorf("%s says readOnlyHint %v", tool.Name, hint.ReadOnlyHint)
		}
		if !hint.ReadOnlyHint && *hint.DestructiveHint != destructive[tool.Name] {
			t.Errorf("%s says destructiveHint %v", tool.Name, *hint.DestructiveHint)
		}
		if in := tool.InputSchema.(map[string]any); in["additionalProperties"] != false {
			t.Errorf("%s takes arguments that it does not describe", tool.Name)
		}
	}
}

func TestConfig_InvalidValuesAreRefused(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	tests := map[string]struct {
		cfg  demo.Config
		deps demo.Deps
		want string
	}{
		"the zero value":     {demo.Config{}, demo.Deps{Log: log}, "MaxNotes is 0: choose 3 to 100000\nSessionIdle is 0s"},
		"too many notes":     {demo.Config{MaxNotes: 100_001, Stateless: true}, demo.Deps{Log: log}, "MaxNotes is 100001"},
		"no logger":          {demo.DefaultConfig(), demo.Deps{}, "Deps.Log is nil"},
		"sessions for never": {demo.Config{MaxNotes: 3, SessionIdle: -1}, demo.Deps{Log: log}, "SessionIdle is -1ns"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := demo.New(tt.cfg, tt.deps)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestServeStdio_ReturnsWhenItsInputEnds(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		lines  string
		cancel bool
		want   string
	}{
		"well when the input ends":           {"", false, ""},
		"well when it is cancelled":          {"", true, ""},
		"with an error when a line is noise": {"hello\n", false, "serve stdio: "},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			in, feed := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- newServer(t, nil).ServeStdio(ctx, in, discard{}) }()
			if _, err := io.WriteString(feed, tt.lines); err != nil {
				t.Fatal(err)
			}
			if tt.cancel {
				cancel()
			} else if tt.want == "" {
				_ = feed.Close() // closing a pipe does not fail
			}
			err := <-done
			if (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("ended with %v, want %q", err, tt.want)
			}
		})
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }
