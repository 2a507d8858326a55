package identity_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/oauthtest"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

const (
	// rotatedLife is the lifetime of access tokens in the tests of rotation. The tokens are refreshed rotatedBefore before
	// their expiry.
	rotatedLife, rotatedBefore = 5 * time.Minute, 30 * time.Second
	// leaseTime is how long a killed replica blocks the refresh of its connections.
	leaseTime = 30 * time.Second
	// gatewayPatience is how long a gateway waits for a token.
	gatewayPatience = 45 * time.Second
)

// process is a replica of the identity service that signs in at one server, at which each person uses her own account.
type process struct {
	svc    *identity.Service
	client *oauthtest.Connections
	// data is the data directory, and server the name of the server.
	data, server string
}

// startProcess starts a replica. source is the store's URL, or "sqlite" for the files in the directory data. The store
// must be one of importedStore. The caller must close the replica.
func startProcess(t *testing.T, source, data, server string, transport http.RoundTripper) *process {
	t.Helper()
	svc, err := identity.New(t.Context(), identity.Config{
		Identities: identity.Identities{Tokens: rpctest.Records(), Servers: map[string]identity.OAuthServer{server: {URL: oauthtest.URL, ForEachPerson: true}}},
		Source:     source, Data: data, SealKey: strings.Repeat("5e", 32),
	}, identity.Deps{Tokens: new(authn.Tokens), Policy: new(exporter), Meter: noop.Meter{}, Log: slog.New(slog.DiscardHandler), Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	client, err := oauthtest.NewConnections(svc)
	if err != nil {
		t.Fatal(err)
	}
	return &process{svc: svc, client: client, data: data, server: server}
}

// ask requests the access token of the person ana, like a gateway.
func (p *process) ask(ctx context.Context) (*identityv1.GetAccessTokenResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, gatewayPatience)
	defer cancel()
	return p.client.GetAccessToken(ctx, &identityv1.GetAccessTokenRequest{Server: p.server, Url: oauthtest.URL, Person: person("ana")})
}

func (p *process) signIn(t *testing.T, at *oauthtest.Server) {
	t.Helper()
	if err := p.client.SignIn(t.Context(), at, p.server, principal.Key{Tenant: "default", Subject: "ana"}); err != nil {
		t.Fatal(err)
	}
}

func (p *process) close(t *testing.T) {
	t.Helper()
	if err := p.svc.Close(); err != nil {
		t.Errorf("close a replica: %v", err)
	}
}

// importedStore creates a store whose tokens are valid as soon as a replica is started. source is "sqlite" or the URL of
// an empty database. It returns the data directory.
func importedStore(t *testing.T, source string) (data string) {
	t.Helper()
	data = t.TempDir()
	_, tokens, stop := start(t, options{data: data, source: source})
	eventually.Holds(t, "the tokens are valid", tokens.HasSet)
	stop()
	return data
}

const (
	database = "identity/identity.db"
	wal      = database + "-wal"
)

// copyStore copies the files of a store as they are on disk at this moment. It copies only the given number of bytes of
// the write-ahead log of SQLite.
func copyStore(from, to string, logSize int64) error {
	if err := os.MkdirAll(filepath.Join(to, filepath.Dir(database)), 0o700); err != nil {
		return err
	}
	for _, name := range []string{database, wal} {
		raw, err := os.ReadFile(filepath.Join(from, name))
		if name == wal && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if name == wal {
			raw = raw[:min(int64(len(raw)), logSize)]
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// logSize returns the size of the write-ahead log of SQLite, in bytes.
func logSize(data string) int64 {
	info, err := os.Stat(filepath.Join(data, wal))
	if err != nil {
		return 0
	}
	return info.Size()
}
