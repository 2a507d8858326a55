package identity_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// A session has the time and the class of the authentication at the provider, in all services. Without these claims it
// has none.
func TestCreateSession_HasTheAuthenticationOfTheIDToken(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	at := time.Now().Add(-time.Hour).Unix()
	for name, c := range map[string]struct {
		claims map[string]any
		at     int64
		acr    string
	}{
		"both":               {map[string]any{"auth_time": at, "acr": "phr"}, at, "phr"},
		"neither":            {nil, 0, ""},
		"a class too long":   {map[string]any{"auth_time": at, "acr": strings.Repeat("x", 257)}, at, ""},
		"a time that is odd": {map[string]any{"auth_time": "today"}, 0, ""},
	} {
		s.provider.set(func(p *provider) { p.claims = c.claims })
		got := s.signIn(t, authv1.TokenRole_TOKEN_ROLE_APPROVER)
		if token := got.GetToken(); token.GetAuthTime().GetSeconds() != c.at || (token.GetAuthTime() == nil) != (c.at == 0) || token.GetAcr() != c.acr {
			t.Errorf("%s: the session is %v", name, token)
		}
		p, err := s.tokens.Lookup(got.GetSecret())
		if err != nil || p.GetAuthTime().GetSeconds() != c.at || p.GetAcr() != c.acr || p.GetTokenCreated() != nil {
			t.Errorf("%s: the principal is %v, %v", name, p, err)
		}
	}
}

// A provider may ignore what was requested, so the mesh checks the ID token.
func TestCreateSession_RefusesAnotherAuthenticationThanTheRequestedOne(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	ago := func(d time.Duration) map[string]any { return map[string]any{"auth_time": time.Now().Add(-d).Unix()} }
	with := func(claims map[string]any, acr string) map[string]any {
		out := maps.Clone(claims)
		out["acr"] = acr
		return out
	}
	five := &identityv1.AuthenticationRequest{MaxAge: durationpb.New(5 * time.Minute)}
	phr := &identityv1.AuthenticationRequest{AcrValues: []string{"phr", "phrh"}}
	for name, c := range map[string]struct {
		claims map[string]any
		want   *identityv1.AuthenticationRequest
		err    string // empty if the sign-in succeeds
	}{
		"a fresh one":                 {ago(time.Second), five, ""},
		"one at the end of the time":  {ago(5*time.Minute + 10*time.Second), five, ""}, // within the leeway of 30 s
		"an old one":                  {ago(6 * time.Minute), five, "the sign-in asked for at most 5m0s"},
		"an old one, nothing asked":   {ago(6 * time.Minute), nil, ""},
		"no time":                     {map[string]any{"auth_time": nil}, five, "does not say when you authenticated"},
		"a little ahead":              {ago(-10 * time.Second), five, ""},
		"in the future":               {ago(-time.Minute), nil, "in the future"},
		"a listed class":              {with(ago(0), "phrh"), phr, ""},
		"another class":               {with(ago(0), "pwd"), phr, "the sign-in asked for phr or phrh"},
		"no class":                    {ago(0), phr, "does not say how you authenticated"},
		"a class in another spelling": {with(ago(0), "PHR"), phr, "the sign-in asked for phr or phrh"},
	} {
		s.provider.set(func(p *provider) { p.nonce, p.claims = testNonce, c.claims })
		req := code(0)
		req.Authentication = c.want
		resp, err := s.client(t, "").CreateSession(t.Context(), req)
		if c.err == "" {
			if err != nil || resp.GetToken().GetAuthTime().AsTime().After(time.Now()) {
				t.Errorf("%s: %v, %v", name, resp, err)
			}
			continue
		}
		rpctest.WantStatus(t, err, codes.PermissionDenied, "SIGN_IN_REFUSED")
		if err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, want := range map[string]*identityv1.AuthenticationRequest{
		"0 s":       {MaxAge: durationpb.New(0)},
		"25 h":      {MaxAge: durationpb.New(25 * time.Hour)},
		"a space":   {AcrValues: []string{"a b"}},
		"nine":      {AcrValues: strings.Split("a b c d e f g h i", " ")},
		"twice":     {AcrValues: []string{"a", "a"}},
		"too long":  {AcrValues: []string{strings.Repeat("a", 257)}},
		"no letter": {AcrValues: []string{""}},
	} {
		req := code(0)
		req.Authentication = want
		_, err := s.client(t, "").CreateSession(t.Context(), req)
		if rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST"); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// The device flow has no such parameters. They are sent nevertheless, and the ID token is checked.
func TestStartDeviceSignIn_SendsTheRequestedAuthentication(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	want := &identityv1.AuthenticationRequest{MaxAge: durationpb.New(5 * time.Minute), AcrValues: []string{"phr", "phrh"}}
	for _, asked := range []*identityv1.AuthenticationRequest{nil, want} {
		if _, err := s.client(t, "").StartDeviceSignIn(t.Context(), &identityv1.StartDeviceSignInRequest{Issuer: "corp", Authentication: asked}); err != nil {
			t.Fatal(err)
		}
	}
	s.provider.set(func(p *provider) {
		if p.devices[0].Has("max_age") || p.devices[0].Has("acr_values") || p.devices[1].Get("max_age") != "300" || p.devices[1].Get("acr_values") != "phr phrh" {
			t.Errorf("the provider has received %v", p.devices)
		}
	})
	req := code(0)
	byDevice(req)
	req.Authentication = want
	_, err := s.client(t, "").CreateSession(t.Context(), req) // the provider has ignored the parameters
	rpctest.WantStatus(t, err, codes.PermissionDenied, "SIGN_IN_REFUSED")
}
