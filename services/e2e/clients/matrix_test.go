package clients_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// These are the MCP features in the matrix of clients and servers, in the order of its columns.
const (
	mcpTools         = "tools"
	mcpResources     = "resources"
	mcpPrompts       = "prompts"
	mcpCompletion    = "completion"
	mcpSampling      = "sampling"
	mcpElicitation   = "elicitation"
	mcpSubscriptions = "subscriptions"
	mcpProgress      = "progress"
	mcpCancellation  = "cancellation"
)

func features() []string {
	return []string{mcpTools, mcpResources, mcpPrompts, mcpCompletion, mcpSampling, mcpElicitation, mcpSubscriptions, mcpProgress, mcpCancellation}
}

// wholeMatrixVariable is the name of the environment variable that selects all pairs of clients and servers. If it is
// not set, a quarter of the pairs is tested. This quarter includes every client and every server, both at the server's
// own URL and at the URL for all servers, but not each client with each server.
const wholeMatrixVariable = "SLUICE_MATRIX"

// isTested reports whether the client and the server with these indexes are tested together. The parameter at is 0 for
// the server's own URL and 1 for the URL for all servers.
func isTested(client, server, at int) bool {
	return os.Getenv(wholeMatrixVariable) != "" || (client+server)%4 == 2*at
}

// expectedCounts returns, for each feature, the number of pairs in the whole matrix that use it at the server's URL and
// at the URL for all servers. With these numbers the test fails if a feature is skipped by mistake.
func expectedCounts() map[string][2]int {
	return map[string][2]int{
		mcpTools:         {88, 88},
		mcpResources:     {66, 54},
		mcpPrompts:       {45, 40},
		mcpCompletion:    {40, 40},
		mcpSampling:      {34, 14},
		mcpElicitation:   {39, 16},
		mcpSubscriptions: {40, 24},
		mcpProgress:      {40, 40},
		mcpCancellation:  {24, 24},
	}
}

// Real clients use real servers through the gateway. The clients and servers support protocol revisions that use
// sessions, stateless revisions, or both. The test covers HTTP and stdio, the URL for one server and the URL for all
// servers. Each pair uses the features that both sides support.
func TestMatrix_ClientsUseServers(t *testing.T) {
	t.Parallel()
	servers, clients := matrixServers(t), matrixClients()
	entries, tokens := make([]string, 0, len(servers)), make([]string, 0, 2*len(clients))
	for _, s := range servers {
		entries = append(entries, strings.TrimRight(s.entry, "\n"))
	}
	for i := range 2 * len(clients) {
		tokens = append(tokens, fmt.Sprintf("    - {name: client%d, token: %q, agent: dev, role: agent}", i, matrixToken(i)))
	}
	s := stack.StartInProcess(t, stack.Options{Servers: strings.Join(entries, "\n"), Tokens: strings.Join(tokens, "\n"), Policy: `version: 1
default: allow
rules:
  - {name: every-method, match: {method: "*"}, action: allow}
`})
	got := &matrixCounts{cells: make(map[string][2]int), cancelled: make(map[string]int)}
	t.Run("pairs", func(t *testing.T) { // Run returns when all pairs have finished
		for i, c := range clients {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel() // each client is a separate caller, so the pairs are independent
				for j, server := range servers {
					t.Run(server.name+" alone", func(t *testing.T) {
						if !isTested(i, j, 0) {
							t.SkipNow()
						}
						got.runPair(t, c, server, 2*i, func(t *testing.T, tries map[string]npmtest.FeatureUse) map[string]npmtest.FeatureResult {
							t.Helper()
							return c.use(t, s.MCP(server.name), matrixToken(2*i), tries)
						})
					})
					t.Run(server.name+" among all", func(t *testing.T) {
						if !isTested(i, j, 1) {
							t.SkipNow()
						}
						got.runPair(t, c, server, 2*i+1, func(t *testing.T, tries map[string]npmtest.FeatureUse) map[string]npmtest.FeatureResult {
							t.Helper()
							return c.use(t, s.AllServers(), matrixToken(2*i+1), tries)
						})
					})
				}
			})
		}
	})
	got.check(t)
	ended := make(map[string]int)
	for _, r := range stack.ListRecords(stack.TimeoutContext(t), t, gatewayv1.NewGatewayServiceClient(s.Operator(t))) {
		if r.GetKind() == gatewayv1.RecordKind_RECORD_KIND_OUTCOME && r.GetResult() == gatewayv1.ResultClass_RESULT_CLASS_UNKNOWN && r.GetMethod() == "tools/call" {
			ended[r.GetPrincipal().GetTokenId()+" "+r.GetServer()]++
		}
	}
	if diff := cmp.Diff(got.cancelled, ended); diff != "" {
		t.Errorf("tool calls that clients cancelled, and recorded tool calls without a result, by client and server (-want +got):\n%s", diff)
	}
}

// check compares the number of pairs that use each feature with the expected numbers.
func (m *matrixCounts) check(t *testing.T) {
	t.Helper()
	if os.Getenv(wholeMatrixVariable) != "" {
		if diff := cmp.Diff(expectedCounts(), m.cells); diff != "" {
			t.Errorf("the pairs that use each feature, alone and among all (-want +got):\n%s", diff)
		}
		return
	}
	for feature := range expectedCounts() {
		if n := m.cells[feature]; n[0] == 0 || n[1] == 0 {
			t.Errorf("%s is used by %d pairs alone and %d among all, want at least one each", feature, n[0], n[1])
		}
	}
}

// matrixCounts counts the pairs that use each feature, and the calls that each client cancels on each server.
type matrixCounts struct {
	mu        sync.Mutex
	cells     map[string][2]int
	cancelled map[string]int
}

// runPair makes a client use the features that both sides support, and logs these features. The parameter caller is
// even if the client uses the server's own URL, and odd if it uses the URL for all servers.
func (m *matrixCounts) runPair(t *testing.T, c matrixClient, s matrixServer, caller int, does func(t *testing.T, tries map[string]npmtest.FeatureUse) map[string]npmtest.FeatureResult) {
	t.Helper()
	at := caller % 2
	has, lacks := s.tries, slices.Concat(c.lacks, c.lacksAt[s.name])
	if at == 1 {
		has, lacks = triesAmongAll(s), c.lacksAmongAll
	}
	both, asked, cells := make(map[string]matrixTry), make(map[string]npmtest.FeatureUse), make([]string, 0, len(features()))
	for _, feature := range features() {
		try, ok := has[feature]
		switch can := !slices.Contains(lacks, feature); {
		case ok && can:
			both[feature], asked[feature] = try, try.FeatureUse
			cells = append(cells, feature)
		case ok:
			cells = append(cells, "("+feature+": the client does not)")
		case can:
			cells = append(cells, "("+feature+": the server does not)")
		default:
			cells = append(cells, "("+feature+": neither does)")
		}
	}
	t.Log(c.name, "and", s.name, []string{"alone:", "among all:"}[at], strings.Join(cells, ", "))
	did := does(t, asked)
	for feature, try := range both {
		try.check(t, feature, did[feature])
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for feature := range both {
		count := m.cells[feature]
		count[at]++
		m.cells[feature] = count
	}
	if _, gives := both[mcpCancellation]; gives {
		m.cancelled[fmt.Sprintf("client%d %s", caller, s.name)]++
	}
}

// matrixToken returns a client's token for one of the two URLs. The client has two tokens, because a stdio process with
// several sessions of one caller can't send server requests.
func matrixToken(i int) string { return fmt.Sprintf("matrix-token-of-the-client-number-%04d", i) }

// triesAmongAll returns a use of each feature of a server, with the names that are valid at the URL for all servers. It
// leaves out features that depend on tools that the server lists only to some clients, because that URL serves the list
// that the gateway itself has read.
func triesAmongAll(s matrixServer) map[string]matrixTry {
	all := make(map[string]matrixTry)
	for feature, try := range s.tries {
		if try.Name != "" {
			try.Name = s.name + "__" + try.Name
		}
		if try.URI != "" {
			try.URI = "mcp." + s.name + "+" + try.URI
		}
		if !slices.Contains(s.onlyAtOwnURL, feature) {
			all[feature] = try
		}
	}
	return all
}

// matrixTry is a use of a feature and the string that its result must contain.
type matrixTry struct {
	npmtest.FeatureUse

	want string
}

func (m matrixTry) check(t *testing.T, feature string, did npmtest.FeatureResult) {
	t.Helper()
	want := m.want
	switch feature {
	case mcpTools, mcpPrompts:
		if !slices.Contains(did.Listed, m.Name) {
			t.Errorf("%s: %s is not among those listed: %v", feature, m.Name, did.Listed)
		}
	case mcpResources:
		if !slices.Contains(did.Listed, m.URI) {
			t.Errorf("%s: %s is not among those listed: %v", feature, m.URI, did.Listed)
		}
	case mcpSubscriptions:
		want = "changed " + m.URI
	case mcpCancellation:
		want = "given up"
	}
	if did.Error != "" || want == "" || !strings.Contains(did.Text, want) {
		t.Errorf("%s: want %q, got %.600s %.900s", feature, want, did.Text, did.Error)
	}
}
