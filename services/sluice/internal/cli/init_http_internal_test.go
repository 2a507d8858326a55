package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
)

// The policy of the mesh may hide tools, and the mesh adds its own tool. Neither of these counts as a difference
// between two servers.
func TestComparison_DiffersOnlyInDefinitions(t *testing.T) {
	t.Parallel()
	const a, a2, b, c, wait = `{"name":"a","description":"1"}`, `{"description":"2","name":"a"}`, `{"name":"b"}`, `{"name":"c"}`, `{"name":"sluice_approval_wait"}`
	for _, tt := range []struct {
		name           string
		direct, behind []string
		same           int
		missing, more  []string
		reason         string
	}{
		{name: "the same", direct: []string{a, b}, behind: []string{b, a}, same: 2},
		{name: "the order of members", direct: []string{a}, behind: []string{`{"description":"1","name":"a"}`}, same: 1},
		{name: "the tool of the mesh", direct: []string{a}, behind: []string{a, wait}, same: 1},
		{name: "a hidden tool", direct: []string{a, b}, behind: []string{a}, same: 1, missing: []string{"b"}},
		{name: "another tool", direct: []string{a}, behind: []string{a, c}, same: 1, more: []string{"c"}},
		{name: "another definition", direct: []string{a, b}, behind: []string{a2, b}, reason: `the tool "a" has another definition`},
		{name: "nothing in common", direct: []string{a}, behind: []string{c, wait}, missing: []string{"a"}, more: []string{"c"}, reason: "no tool"},
		{name: "all tools are hidden", direct: []string{a}, missing: []string{"a"}, reason: "no tool"},
		{name: "no tools at all"},
		{name: "a tool twice at the mesh", direct: []string{a}, behind: []string{a2, a}, reason: `can't be compared: the tool "a" is listed twice`},
		{name: "a tool twice on this machine", direct: []string{a2, a}, behind: []string{a}, reason: `can't be compared: the tool "a" is listed twice`},
		{name: "no list", direct: []string{"}"}, behind: []string{a}, reason: "can't be compared"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			list := func(tools []string) jsontext.Value { return jsontext.Value("[" + strings.Join(tools, ",") + "]") }
			got := comparison{behind: listedServer{tools: list(tt.behind)}}
			got.difference(listedServer{tools: list(tt.direct)})
			if (got.reason == "") != (tt.reason == "") || !strings.Contains(got.reason, tt.reason) {
				t.Errorf("the reason is %q, want %q", got.reason, tt.reason)
			}
			if tt.reason != `the tool "a" has another definition` && (got.same != tt.same || !slices.Equal(got.missing, tt.missing) || !slices.Equal(got.more, tt.more)) {
				t.Errorf("%d in common, missing %q, more %q", got.same, got.missing, got.more)
			}
		})
	}
}

// One list contains a tool twice, and the first of the two definitions is different. The comparison does not treat this
// list as equal to a list that contains the tool once.
func TestCompareTools_RefusesAToolThatIsListedTwice(t *testing.T) {
	t.Parallel()
	once, twice := jsontext.Value(`[{"name":"a"}]`), jsontext.Value(`[{"name":"a","description":"hostile"},{"name":"a"}]`)
	for _, lists := range [][2]jsontext.Value{{once, twice}, {twice, once}, {twice, twice}} {
		if got := compareTools(lists[0], lists[1]); !strings.Contains(got, `the tool "a" is listed twice`) {
			t.Errorf("the difference of %s and %s is %q", lists[0], lists[1], got)
		}
	}
}

func TestCheckToken_RefusesWhatNoTokenHas(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"abc-DEF_123\n": "abc-DEF_123", " \tabc\r\n": "abc", "": "", "\n": "", "two words": "", "two\nlines": "", "\u00fc": "", "a\x00b": "",
	} {
		got, err := checkToken(given)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v", given, got, err)
		}
	}
}

// clientElsewhere returns a run of `init CLIENT --http URL`. The client cursor has a stored token for the mesh.
func clientElsewhere(t *testing.T, out io.Writer, client string) *elsewhereSetup {
	t.Helper()
	at, err := personal.Paths{Data: t.TempDir()}.Elsewhere("https://mesh.example.com")
	if err != nil {
		t.Fatal(err)
	}
	stored := at.Token("cursor")
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(stored), 0o700), os.WriteFile(stored, []byte("stored"), 0o600), os.WriteFile(at.Address(), []byte(at.URL), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	return &elsewhereSetup{setup: &setup{tool: newTool("sluice", out, io.Discard), clients: []clientconfig.Client{{ID: client}}}, at: at, client: client}
}

// SLUICE_TOKEN may be an operator's token, so `init` does not use it. It does not use another client's token either.
func TestReadToken_UsesOnlyTheTokenOfTheClient(t *testing.T) {
	t.Setenv("SLUICE_TOKEN", "operator")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ client, file, want, source string }{
		{client: "cursor", want: "stored", source: "the stored token of cursor"},
		{client: "cursor", file: file, want: "new", source: file},
		{client: "zed", file: file, want: "new", source: file},
		{client: "zed"}, // a test has no terminal
	} {
		var out strings.Builder
		e := clientElsewhere(t, &out, tt.client)
		e.flags.tokenFile = tt.file
		got, err := e.readToken(t.Context())
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s with the file %q uses %q, %v", tt.client, tt.file, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "--token-file") {
			t.Errorf("the error is %v", err)
		}
		if e.isNew != (tt.want != "stored") || !strings.Contains(out.String(), tt.source) {
			t.Errorf("isNew is %v, and init prints %q", e.isNew, out.String())
		}
	}
}

// A token belongs to one client, so `init` does not accept several clients.
func TestNewElsewhere_NeedsOneClient(t *testing.T) {
	t.Parallel()
	for _, clients := range [][]clientconfig.Client{nil, clientconfig.Clients(), clientconfig.Clients()[:2]} {
		s := &setup{tool: newTool("sluice", io.Discard, io.Discard), flags: initFlags{http: "https://mesh.example.com"}, clients: clients, paths: personal.Paths{Data: t.TempDir()}}
		e, err := s.newElsewhere()
		if _, isUsage := errors.AsType[usageError](err); !isUsage || e != nil {
			t.Errorf("%d clients: %v", len(clients), err)
		}
	}
}

// While a tunnel is down, another user of this machine can listen on its port. The flag --yes does not accept this
// risk.
func TestNewElsewhere_RefusesALoopbackPortWithoutTLSUnlessAgreed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		url             string
		agreed, refused bool
	}{
		{url: "http://127.0.0.1:8080", refused: true},
		{url: "HTTP://localhost:8080", refused: true},
		{url: "http://127.0.0.1:8080", agreed: true},
		{url: "https://127.0.0.1:8080"},
	} {
		s := &setup{
			tool: newTool("sluice", io.Discard, io.Discard), paths: personal.Paths{Data: t.TempDir()}, clients: []clientconfig.Client{{ID: "cursor"}},
			flags: initFlags{http: tt.url, yes: true, trustLoopback: tt.agreed},
		}
		e, err := s.newElsewhere()
		if _, refused := errors.AsType[usageError](err); refused != tt.refused || (err != nil) != tt.refused || (e != nil) == tt.refused {
			t.Errorf("%s with --trust-loopback %v: %v", tt.url, tt.agreed, err)
		}
	}
}
