package httpserver

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// While a request waits, its token loses a group. After that, the token no longer counts as valid for this request,
// because the request would still be evaluated with the group.
func TestAuthenticated_TokenOfAWaitingRequestLosesAGroup(t *testing.T) {
	t.Parallel()
	record := rpctest.Record("bot", "default", authv1.TokenRole_TOKEN_ROLE_AGENT)
	record.Token.Groups = []string{"finance"}
	tokens := new(authn.Tokens)
	publish := func() {
		if err := tokens.Update(&identityv1.TokenSet{Tokens: []*identityv1.TokenRecord{record}}); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	s, called := &Server{deps: Deps{Tokens: tokens}}, false
	next := func(_ http.ResponseWriter, _ *http.Request, c Caller) {
		called = true
		publish()
		if err := c.Credential.Check(t.Context()); err != nil || !c.Credential.IsValid() || c.Revoked(t.Context()) {
			t.Errorf("the set was received again: %v, valid %t", err, c.Credential.IsValid())
		}
		record.Token.Groups = nil
		publish()
		if err := c.Credential.Check(t.Context()); !errors.Is(err, authn.ErrRightsChanged) || c.Credential.IsValid() || !c.Revoked(t.Context()) {
			t.Errorf("the token lost its group: %v, valid %t", err, c.Credential.IsValid())
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp/s", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+rpctest.Secret("bot"))
	s.Authenticated(next, next)(httptest.NewRecorder(), r)
	if !called {
		t.Error("the request was refused")
	}
}
