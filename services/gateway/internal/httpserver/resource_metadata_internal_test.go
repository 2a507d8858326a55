package httpserver

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// A client that requests exactly the scopes of the challenge must not lose scopes that it has. A JWT can contain texts
// that are no scopes. They must not end the quoted string of the challenge.
func TestScopeChallenge_ContainsTheNeededAndTheHeldScopes(t *testing.T) {
	t.Parallel()
	s := &Server{deps: Deps{Tokens: new(authn.Tokens)}}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp/s", http.NoBody)
	var many []string
	for i := range 128 {
		many = append(many, fmt.Sprintf("%03d%s", i, strings.Repeat("x", 253)))
	}
	for name, tt := range map[string]struct {
		needed, held []string
		want         string
	}{
		"no scopes are held":           {[]string{"a", "b"}, nil, "a b"},
		"other scopes are held":        {[]string{"m", "n"}, []string{"a", "n", "z"}, "m n a z"},
		"the scope of refresh tokens":  {[]string{"m"}, []string{"a", "offline_access", "openid"}, "m a openid"},
		"texts that are no scopes":     {[]string{"m"}, []string{`a", error="x`, `b\`, "c\u00e9", "d\x7f", "", "e"}, "m e"},
		"more scopes than can be sent": {[]string{"m"}, append(many, "z"), "m " + strings.Join(many[:15], " ") + " z"},
	} {
		caller := Caller{Principal: &identityv1.Principal{Scopes: tt.held}}
		want := `Bearer realm="sluice", error="insufficient_scope", scope="` + tt.want + `"`
		if got := s.ScopeChallenge(r, caller, tt.needed); got != want || len(tt.want) > maxChallengeScopes {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
