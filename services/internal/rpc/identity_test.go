package rpc_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// whoami returns a probe whose methods return a description of the caller that is in their context.
func whoami() probe {
	say := func(ctx context.Context) string {
		c := authn.CallerOf(ctx)
		if c == nil {
			return "nobody"
		}
		return strings.Join([]string{authn.RoleName(c.Role), c.Person.GetSubject(), c.Principal.GetSubject()}, ",")
	}
	return probe{
		unary: func(ctx context.Context, _ *identityv1.RevokeTokenRequest) (string, error) { return say(ctx), nil },
		stream: func(ss grpc.BidiStreamingServer[identityv1.RevokeTokenRequest, wrapperspb.StringValue]) error {
			return ss.Send(wrapperspb.String(say(ss.Context())))
		},
	}
}

func ana() *identityv1.Principal {
	return &identityv1.Principal{Tenant: "default", Subject: "ana", Role: agent}
}

// checkAnswer compares a response with the expected text, or an error with the expected code and reason.
func checkAnswer(t *testing.T, got string, err error, text string, code codes.Code, reason string) {
	t.Helper()
	if got != text || status.Code(err) != code || rpc.Reason(err) != reason {
		t.Errorf("got %q, %v (%s), want %q, %v (%s)", got, err, rpc.Reason(err), text, code, reason)
	}
}

func TestServer_IdentifiesRoles(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, whoami().register(t))
	tests := []struct {
		name   string
		role   authv1.Role
		speaks bool
		behalf *identityv1.Principal
		method string
		want   string
		code   codes.Code
		reason string
	}{
		{"one that the contract names", gateway, true, nil, methodUnary, "gateway,,", codes.OK, ""},
		{"one that it does not name", ratelimit, true, nil, methodUnary, "", codes.PermissionDenied, "CALLER_REFUSED"},
		{"the server's own", policy, true, nil, methodUnary, "", codes.PermissionDenied, "CALLER_REFUSED"},
		{"a principal that the method does not need", gateway, true, ana(), methodUnary, "gateway,,ana", codes.OK, ""},
		{"a principal that the method needs", gateway, true, ana(), methodBehalf, "gateway,,ana", codes.OK, ""},
		{"no principal although the method needs one", gateway, true, nil, methodBehalf, "", codes.Unauthenticated, "PRINCIPAL_REQUIRED"},
		{"on behalf of the empty principal", gateway, true, new(identityv1.Principal), methodBehalf, "", codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"wasmagent for a person", wasmagent, true, ana(), methodBehalf, "", codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"a role without a signer", ratelimit, true, ana(), methodBehalf, "", codes.Internal, "NO_SIGNER"},
		{"the gateway without its signer", gateway, false, ana(), methodBehalf, "", codes.Internal, "NO_SIGNER"},
		{"a method that says nothing of its callers", gateway, true, nil, methodBare, "", codes.PermissionDenied, "CALLER_REFUSED"},
		{"a method that names no callers", gateway, true, nil, methodEmpty, "", codes.PermissionDenied, "CALLER_REFUSED"},
		{"a method that names the unspecified", gateway, true, nil, methodNobody, "", codes.PermissionDenied, "CALLER_REFUSED"},
	}
	for _, w := range s.paths() {
		for _, tt := range tests {
			t.Run(w.name+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				ctx := authn.OnBehalfOf(timeoutContext(t), tt.behalf)
				got, err := ask(ctx, w.as(t, tt.role, tt.speaks), tt.method)
				checkAnswer(t, got, err, tt.want, tt.code, tt.reason)
				if tt.method == methodUnary {
					got, err = open(ctx, w.as(t, tt.role, tt.speaks), "name")
					checkAnswer(t, got, err, tt.want, tt.code, tt.reason)
				}
			})
		}
	}
}

// Cases I1, I2. In addition to its certificate or pipe, a service sends a token, or a principal that it has not signed.
// The server refuses the call.
func TestServer_RefusesOtherClaimsOfRoles(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, whoami().register(t))
	tests := []struct {
		name   string
		md     []string
		reason string
	}{
		{"a token in addition to the certificate", []string{"authorization", "Bearer " + tokenText(operator)}, "UNAUTHENTICATED"},
		{"an empty authorization in addition to the certificate", []string{"authorization", ""}, "UNAUTHENTICATED"},
		{"two authorizations", []string{"authorization", "Bearer a", "authorization", "Bearer b"}, "UNAUTHENTICATED"},
		{"an unsigned principal", []string{authn.PrincipalKey, "ana"}, "PRINCIPAL_REFUSED"},
		{"an empty principal", []string{authn.PrincipalKey, ""}, "PRINCIPAL_REFUSED"},
		{"two principals", []string{authn.PrincipalKey, "ana", authn.PrincipalKey, "bob"}, "PRINCIPAL_REFUSED"},
	}
	for _, w := range s.paths() {
		for _, tt := range tests {
			t.Run(w.name+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				ctx := metadata.AppendToOutgoingContext(timeoutContext(t), tt.md...)
				got, err := ask(ctx, w.as(t, gateway, false), methodUnary)
				checkAnswer(t, got, err, "", codes.Unauthenticated, tt.reason)
				got, err = open(ctx, w.as(t, gateway, false), "name")
				checkAnswer(t, got, err, "", codes.Unauthenticated, tt.reason)
			})
		}
		t.Run(w.name+"/what came from elsewhere is replaced", func(t *testing.T) {
			t.Parallel()
			ctx := metadata.AppendToOutgoingContext(authn.OnBehalfOf(timeoutContext(t), ana()), authn.PrincipalKey, "bob", "x-principal", "root", "x-role", "operator")
			got, err := ask(ctx, w.as(t, gateway, true), methodBehalf)
			checkAnswer(t, got, err, "gateway,,ana", codes.OK, "")
			got, err = open(ctx, w.as(t, gateway, true), "name")
			checkAnswer(t, got, err, "gateway,,ana", codes.OK, "")
		})
	}
}

// Case I1. A call names two principals. It is refused, even if both principals are valid.
func TestServer_RefusesTwoPrincipals(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, whoami().register(t))
	id := s.identity(t, pki.RoleLeaf(gateway))
	text, err := signer(t, gateway, id).Sign(ana(), policy)
	if err != nil {
		t.Fatal(err)
	}
	conn := rawConn(t, s.tls, trustingCreds(s.authority, id.Cert))
	ctx := metadata.AppendToOutgoingContext(timeoutContext(t), authn.PrincipalKey, text)
	got, err := ask(ctx, conn, methodBehalf)
	checkAnswer(t, got, err, "gateway,,ana", codes.OK, "")
	got, err = ask(metadata.AppendToOutgoingContext(ctx, authn.PrincipalKey, text), conn, methodBehalf)
	checkAnswer(t, got, err, "", codes.Unauthenticated, "PRINCIPAL_REFUSED")
}

// An agent of the mesh keeps the person of its creator only as long as the creator's token gives this person.
func TestServer_RemovesThePersonOfAnAgentWithoutItsToken(t *testing.T) {
	t.Parallel()
	p := probe{unary: func(ctx context.Context, _ *identityv1.RevokeTokenRequest) (string, error) {
		return "person " + authn.CallerOf(ctx).Principal.GetPerson(), nil
	}}
	s := newTestServer(t, p.register(t))
	behind := func(change func(bot *identityv1.Principal)) *identityv1.Principal {
		bot := ana()
		bot.Person, bot.TokenId = "ana", "gone"
		change(bot)
		return &identityv1.Principal{Tenant: "default", Subject: "agent:default/1", Owner: "ana", Person: "ana", Role: agent, Chain: []*identityv1.Principal{bot}}
	}
	for name, tt := range map[string]struct {
		caller *identityv1.Principal
		want   string
	}{
		"the token is gone":           {behind(func(*identityv1.Principal) {}), "person "},
		"a JWT has created the agent": {behind(func(bot *identityv1.Principal) { bot.Issuer = "corp" }), "person ana"},
	} {
		for _, w := range s.paths() {
			got, err := ask(authn.OnBehalfOf(timeoutContext(t), tt.caller), w.as(t, wasmagent, true), methodBehalf)
			if err != nil || got != tt.want {
				t.Errorf("%s, %s: %q, %v, want %q", w.name, name, got, err, tt.want)
			}
		}
	}
}

// Case I1.
func TestServer_IdentifiesPeopleByToken(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, whoami().register(t))
	bearer := func(token string) []string { return []string{"authorization", "Bearer " + token} }
	const refused, denied = "UNAUTHENTICATED", "CALLER_REFUSED"
	tests := []struct {
		name   string
		md     []string
		method string
		want   string
		code   codes.Code
		reason string
	}{
		{"an operator", bearer(tokenText(operator)), methodUnary, "unknown,TOKEN_ROLE_OPERATOR,", codes.OK, ""},
		{"an operator, with another case of the scheme", []string{"Authorization", "bearer " + tokenText(operator)}, methodUnary, "unknown,TOKEN_ROLE_OPERATOR,", codes.OK, ""},
		{"an operator needs no principal", bearer(tokenText(operator)), methodBehalf, "unknown,TOKEN_ROLE_OPERATOR,", codes.OK, ""},
		{"an operator with a principal", append(bearer(tokenText(operator)), authn.PrincipalKey, "ana"), methodUnary, "", codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"a viewer", bearer(tokenText(authv1.TokenRole_TOKEN_ROLE_VIEWER)), methodUnary, "", codes.PermissionDenied, denied},
		{"an agent", bearer(tokenText(agent)), methodUnary, "", codes.PermissionDenied, denied},
		{"an agent, where a contract would let it in", bearer(tokenText(agent)), methodAgents, "", codes.PermissionDenied, denied},
		{"a token without a role", bearer(tokenText(0)), methodNobody, "", codes.PermissionDenied, denied},
		{"an operator for a method without callers", bearer(tokenText(operator)), methodBare, "", codes.PermissionDenied, denied},
		{"no credential", nil, methodUnary, "", codes.Unauthenticated, refused},
		{"an unknown token", bearer(strings.Repeat("x", 40)), methodUnary, "", codes.Unauthenticated, refused},
		{"an empty token", bearer(""), methodUnary, "", codes.Unauthenticated, refused},
		{"a token without its scheme", []string{"authorization", tokenText(operator)}, methodUnary, "", codes.Unauthenticated, refused},
		{"another scheme", []string{"authorization", "Basic " + tokenText(operator)}, methodUnary, "", codes.Unauthenticated, refused},
		{"two spaces", []string{"authorization", "Bearer  " + tokenText(operator)}, methodUnary, "", codes.Unauthenticated, refused},
		{"one token twice", append(bearer(tokenText(operator)), bearer(tokenText(operator))...), methodUnary, "", codes.Unauthenticated, refused},
		{"a good token behind a bad one", append(bearer("bad"), bearer(tokenText(operator))...), methodUnary, "", codes.Unauthenticated, refused},
		{"a principal alone", []string{authn.PrincipalKey, "ana"}, methodUnary, "", codes.Unauthenticated, refused},
		{"a role's name in metadata", []string{"role", "gateway", ":authority", "gateway", "x-forwarded-client-cert", "URI=spiffe://sluice/gateway"}, methodUnary, "", codes.Unauthenticated, refused},
	}
	overTLS, err := rpc.DialPerson(s.tls, "", rpc.ClientTLS(nil, s.authority.Pool(), policy))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = overTLS.Close() })
	for name, conn := range map[string]grpc.ClientConnInterface{"on loopback": s.person(t, ""), "over TLS": overTLS} {
		for _, tt := range tests {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				ctx := metadata.AppendToOutgoingContext(timeoutContext(t), tt.md...)
				got, err := ask(ctx, conn, tt.method)
				checkAnswer(t, got, err, tt.want, tt.code, tt.reason)
				if tt.method == methodUnary {
					got, err = open(ctx, conn, "name")
					checkAnswer(t, got, err, tt.want, tt.code, tt.reason)
				}
			})
		}
	}
}

// The server refuses a token that was removed, and a token that it has not received.
func TestServer_RefusesRemovedTokens(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, whoami().register(t))
	conn := s.person(t, tokenText(operator))
	got, err := ask(timeoutContext(t), conn, methodUnary)
	checkAnswer(t, got, err, "unknown,TOKEN_ROLE_OPERATOR,", codes.OK, "")
	if err := s.tokens.Replace(nil); err != nil {
		t.Fatal(err)
	}
	got, err = ask(timeoutContext(t), conn, methodUnary)
	checkAnswer(t, got, err, "", codes.Unauthenticated, "UNAUTHENTICATED")

	unheard := (&testServer{tokens: new(authn.Tokens)}).start(t, whoami().register(t))
	got, err = ask(timeoutContext(t), unheard.person(t, tokenText(operator)), methodUnary)
	checkAnswer(t, got, err, "", codes.Unauthenticated, "UNAUTHENTICATED")
}
