package identity_test

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// options configures a service for tests. The zero value has one token for each token role.
type options struct {
	tokens []*identityv1.TokenRecord
	// groups contains the groups of the configuration. The field reload is a function that reads the configuration again.
	groups map[string][]string
	reload func() (identity.Identities, error)
	// issuers are the issuers of the configuration.
	issuers []identity.Issuer
	// servers are the servers at which the mesh signs in.
	servers map[string]identity.OAuthServer
	// refreshBefore is how long before its expiry an access token is refreshed. Zero means the default.
	refreshBefore time.Duration
	// data is the data directory. If it is empty, a new directory is used.
	data string
	// source is the store's URL. If it is empty, the store is SQLite.
	source string
	// policy is the policy service, which exports tokens. If it is nil, there are no such tokens.
	policy policyv1.PolicyServiceClient
	log    io.Writer
}

// exporter is a policy service that exports tokens. If err is not nil, it is unavailable.
type exporter struct {
	policyv1.PolicyServiceClient
	mu     sync.Mutex
	tokens []*policyv1.ExportedToken
	err    error
	// moved is true after a request has said that the tokens were stored.
	moved bool
}

func (e *exporter) ExportTokens(_ context.Context, req *policyv1.ExportTokensRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[policyv1.ExportTokensResponse], error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, e.err
	}
	if req.GetStored() {
		e.moved = true
		return new(exportStream), nil
	}
	return &exportStream{tokens: e.tokens}, nil
}

// set changes the tokens and the error.
func (e *exporter) set(tokens []*policyv1.ExportedToken, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tokens, e.err = tokens, err
}

// exportStream sends one token in each message.
type exportStream struct {
	grpc.ClientStream
	tokens []*policyv1.ExportedToken
}

func (s *exportStream) Recv() (*policyv1.ExportTokensResponse, error) {
	if len(s.tokens) == 0 {
		return nil, io.EOF
	}
	first := s.tokens[:1]
	s.tokens = s.tokens[1:]
	return &policyv1.ExportTokensResponse{Tokens: first}, nil
}

// build returns a service that does not run yet, and its tokens.
func build(t testing.TB, opts options) (*identity.Service, *authn.Tokens) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if opts.log != nil {
		log = slog.New(slog.NewTextHandler(opts.log, nil))
	}
	if opts.tokens == nil {
		opts.tokens = rpctest.Records()
	}
	if opts.policy == nil {
		opts.policy = new(exporter)
	}
	if opts.data == "" {
		opts.data = t.TempDir()
	}
	tokens := new(authn.Tokens)
	svc, err := identity.New(t.Context(), identity.Config{
		Identities: identity.Identities{Tokens: opts.tokens, Groups: opts.groups, Issuers: opts.issuers, Servers: opts.servers}, Source: cmp.Or(opts.source, "sqlite"), Data: opts.data, RefreshBefore: opts.refreshBefore,
	}, identity.Deps{Tokens: tokens, Policy: opts.policy, Meter: noop.Meter{}, Log: log, Reload: opts.reload})
	if err != nil {
		t.Fatal(err)
	}
	return svc, tokens
}

// start returns a running service, its tokens, and a function that stops and closes the service. The service is stopped
// when the test ends, unless the test has stopped it.
func start(t testing.TB, opts options) (svc *identity.Service, tokens *authn.Tokens, stop func()) {
	t.Helper()
	svc, tokens = build(t, opts)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := svc.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	t.Cleanup(stop)
	return svc, tokens, stop
}

// serve serves a running service whose tokens are valid.
func serve(t *testing.T, opts options) *rpctest.Server {
	t.Helper()
	svc, tokens, _ := start(t, opts)
	eventually.Holds(t, "the tokens are valid", tokens.HasSet)
	return rpctest.Serve(t, authv1.Role_ROLE_IDENTITY, svc, rpctest.Options{Tokens: tokens})
}
