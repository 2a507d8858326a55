package signin_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
)

// loginClient is the OAuth client of `sluice login`, and loginCallback its redirect URI, with any port.
const loginClient, loginCallback = "sluice", "http://127.0.0.1/callback"

// provider is a running OpenID provider.
type provider struct {
	url string
	// clientID identifies the clients. If it is empty, the clients register themselves.
	clientID string
	// connectClientID identifies the mesh when it signs in at a server. If it is empty, the mesh registers itself.
	connectClientID string
	// audience is the claim `aud` of the access tokens. If it is empty, it is the resource that the client requests.
	audience string
	// subject is the claim `sub` of the person.
	subject string
	// loginScope is the scope that adds groups to ID tokens.
	loginScope string
	// hasDeviceFlow is true if the client of `sluice login` may use the device flow.
	hasDeviceFlow bool
}

// providers returns functions that start the providers. They differ in what the mesh depends on: how clients are
// registered, and whether access tokens name the requested resource (RFC 8707).
func providers() map[string]func(*testing.T) provider {
	return map[string]func(*testing.T) provider{
		"oidc-provider": func(t *testing.T) provider {
			t.Helper()
			return provider{url: npmtest.StartOIDCProvider(t), subject: personName, loginScope: "groups", hasDeviceFlow: true}
		},
		"zitadel/oidc": startZitadel,
	}
}

// startZitadel starts the OpenID provider of github.com/zitadel/oidc with its example storage in memory.
func startZitadel(t *testing.T) provider {
	t.Helper()
	const clientID, connectClient = "native", "connect"
	login := storage.NativeClient(loginClient, loginCallback)
	server := httptest.NewUnstartedServer(nil)
	url := "http://" + server.Listener.Addr().String()
	clients := map[string]*storage.Client{clientID: storage.NativeClient(clientID, unusedCallback, "http://localhost/oauth/callback"), loginClient: login, connectClient: storage.NativeClient(connectClient, loginCallback)}
	users := storage.NewStorageWithClients(storage.NewUserStore(url), clients)
	server.Config.Handler = exampleop.SetupServer(url, jwtStorage{users}, slog.New(slog.DiscardHandler), false)
	server.Start()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		server.Close()
	})
	return provider{url: url, clientID: clientID, connectClientID: connectClient, audience: clientID + ", " + connectClient, subject: "id2", loginScope: "profile"}
}

// jwtStorage makes access tokens JWTs, and adds a group to access tokens and ID tokens.
type jwtStorage struct{ *storage.Storage }

func (s jwtStorage) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	client, err := s.Storage.GetClientByClientID(ctx, id)
	if err != nil {
		return nil, err
	}
	return jwtClient{client}, nil
}

func (jwtStorage) GetPrivateClaimsFromScopes(context.Context, string, string, []string) (map[string]any, error) {
	return map[string]any{"groups": []string{"developers"}}, nil
}

// SetUserinfoFromRequest adds a group to ID tokens.
func (s jwtStorage) SetUserinfoFromRequest(ctx context.Context, info *oidc.UserInfo, of op.IDTokenRequest, scopes []string) error {
	info.AppendClaims("groups", []string{"developers"})
	return s.Storage.SetUserinfoFromRequest(ctx, info, of, scopes)
}

type jwtClient struct{ op.Client }

func (jwtClient) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }
