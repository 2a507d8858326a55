package policy_test

import (
	"cmp"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const document = `version: 1
name: starter
server: demo
default: deny
tools:
  read:   {action: allow}
  export: {rate_limit: {max: 10, window: 60}}
  remove: {action: deny, reason: ask the owner}
  drop:   {action: deny}
  pay:    {action: require_approval, approvers: [finance], quorum: 2, reason: money}
  secret: {action: hide, reason: never told}
rules:
  - name: contractors-read-nothing
    match: {tool: read, groups: [contractors]}
    action: deny
    reason: not for contractors
  - {name: prompts, match: {method: "prompts/*"}, action: allow}
`

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func folder(t testing.TB, text string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "policy.yaml", text)
	return dir
}

// options configures a service for tests. The zero value selects the policy [document].
type options struct {
	paths  []string
	tokens []*identityv1.TokenRecord
	log    io.Writer
	// servers contains the configured servers. If it is nil, the server of [document] is configured, without pinning.
	servers map[string]catalog.Settings
	// data is the data directory. If it is empty, a new directory is used.
	data string
	// observe specifies the servers for which decisions are not enforced but only recorded (mode: observe).
	observe engine.Observe
	// source is the store's URL. If it is empty, the store is SQLite.
	source string
	// stored is true if the policies are in the store. maxStoreAge is how long the store may be unavailable before
	// calls are refused.
	stored      bool
	maxStoreAge time.Duration
	// changes contains the terms on which changes to stored policies are approved. approvals is the approval service.
	changes   *policyv1.ApprovalTerms
	approvals approvalv1.ApprovalServiceClient
	// testsWithin limits the time for running the tests in documents. If it is 0, the limit is one minute.
	testsWithin time.Duration
	// draftTestsWithin is the same for documents that a request only checks.
	draftTestsWithin time.Duration
	// reload is a function that reads the holders of the configured tokens again.
	reload func() (policy.People, error)
}

// holdersOf returns the holders of tokens.
func holdersOf(records []*identityv1.TokenRecord) policy.People {
	var out policy.People
	for _, r := range records {
		out.Tokens = append(out.Tokens, r.GetToken())
	}
	return out
}

// records returns one token for each token role, and the tokens of two approvers in the group finance, because
// [document] requires approvers from that group.
func records() []*identityv1.TokenRecord {
	all := rpctest.Records()
	for _, name := range []string{"fay", "finn"} {
		r := rpctest.Record(name, "default", authv1.TokenRole_TOKEN_ROLE_APPROVER)
		r.Token.Groups = []string{"finance"}
		all = append(all, r)
	}
	return all
}

// build returns a service that is not being served yet, and the service's tokens.
func build(t testing.TB, opts options) (*policy.Service, *authn.Tokens) {
	t.Helper()
	switch {
	case opts.stored:
	case opts.paths == nil && opts.tokens != nil: // the tokens may not include the approvers that document requires
		opts.paths = []string{folder(t, strings.Replace(document, "pay:", "# pay:", 1))}
	case opts.paths == nil:
		opts.paths = []string{folder(t, document)}
	}
	if opts.tokens == nil {
		opts.tokens = records()
	}
	log := slog.New(slog.DiscardHandler)
	if opts.log != nil {
		log = slog.New(slog.NewTextHandler(opts.log, nil))
	}
	data := opts.data
	if data == "" {
		data = t.TempDir()
	}
	if opts.servers == nil {
		opts.servers = map[string]catalog.Settings{"demo": {Mode: catalog.Off}}
	}
	tokens, err := authn.NewTokens(opts.tokens)
	if err != nil {
		t.Fatal(err)
	}
	svc, err := policy.New(t.Context(), policy.Config{
		Paths: opts.paths, Stored: opts.stored, Changes: opts.changes, MaxStoreAge: opts.maxStoreAge, SessionCap: 10, People: holdersOf(opts.tokens), Decide: 15 * time.Minute, Execute: 5 * time.Minute, TestsWithin: cmp.Or(opts.testsWithin, time.Minute), DraftTestsWithin: opts.draftTestsWithin,
		Source: cmp.Or(opts.source, "sqlite"), Data: data, Servers: opts.servers, Observe: opts.observe,
	}, policy.Deps{Tokens: tokens, Signer: signer(t), Approvals: opts.approvals, Log: log, Reload: opts.reload})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = svc.Close() })
	return svc, tokens
}

func signer(t testing.TB) *signeddecision.Signer {
	t.Helper()
	s, _, err := signeddecision.NewLocalPair()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func serve(t *testing.T, opts options) *rpctest.Server {
	t.Helper()
	svc, tokens := build(t, opts)
	return rpctest.Serve(t, authv1.Role_ROLE_POLICY, svc, rpctest.Options{Tokens: tokens})
}

func call(tool string) *policyv1.Call { return &policyv1.Call{Server: "demo", Name: tool} }
