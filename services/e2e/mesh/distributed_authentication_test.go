package mesh_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/base64"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// guardedMethod is a method of a mesh service. An operator may call the method, but most other mesh services may not.
type guardedMethod struct {
	role   authv1.Role
	method string
	// unauthorized is a mesh service that the API does not allow to call the method.
	unauthorized authv1.Role
}

// guardedMethods contains one method of each of the six services.
var guardedMethods = []guardedMethod{
	{identityRole, identityv1.IdentityService_ListTokens_FullMethodName, ratelimitRole},
	{policyRole, policyv1.PolicyService_DecideCall_FullMethodName, ratelimitRole},
	{ratelimitRole, ratelimitv1.RateLimitService_PeekBuckets_FullMethodName, policyRole},
	{approvalRole, approvalv1.ApprovalService_DecideApproval_FullMethodName, ratelimitRole},
	{wasmagentRole, wasmagentv1.AgentService_ListTodos_FullMethodName, ratelimitRole},
	{gatewayRole, gatewayv1.GatewayService_GetStatus_FullMethodName, ratelimitRole},
}

// callWithEmptyRequest calls a method with an empty request. The error shows whether the caller is refused.
func callWithEmptyRequest(ctx context.Context, conn grpc.ClientConnInterface, method string) error {
	return conn.Invoke(ctx, method, new(emptypb.Empty), new(emptypb.Empty))
}

// isRefused reports whether an error means that the service refused the caller before it ran the method.
func isRefused(err error) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.Unavailable, codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}

// Case I5. Each of the six services refuses every peer that its API definition does not allow.
func TestDistributed_ServicesRefuseUnauthorizedPeers(t *testing.T) {
	t.Parallel()
	a := rawmesh.StartDistributed(t, stack.OpenPolicy, "")
	foreign, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	issue := func(from *pki.Authority, life time.Duration, uris ...string) *tls.Certificate {
		certPEM, keyPEM, err := from.Issue(pki.Leaf{Name: "x", URIs: uris, Life: life})
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		return &pair
	}
	const gateway = "spiffe://sluice/gateway"
	bearer := func(token string) []string { return []string{"authorization", "Bearer " + token} }
	tests := []struct {
		name   string
		cert   *tls.Certificate
		md     []string
		code   codes.Code
		reason string
	}{
		{"no credential", nil, nil, codes.Unauthenticated, "UNAUTHENTICATED"},
		{"an unknown token", nil, bearer("unknown-token-text-that-is-long-enough"), codes.Unauthenticated, "UNAUTHENTICATED"},
		{"an agent's token", nil, bearer(stack.AgentToken), codes.PermissionDenied, "CALLER_REFUSED"},
		{"a certificate and a token", issue(a.Authority, 0, gateway), bearer(stack.OperatorToken), codes.Unauthenticated, "UNAUTHENTICATED"},
		{"another CA's certificate", issue(foreign, 0, gateway), nil, codes.Unavailable, ""},
		{"an expired certificate", issue(a.Authority, -1, gateway), nil, codes.Unavailable, ""},
		{"a certificate without a role", issue(a.Authority, 0), nil, codes.Unauthenticated, "UNAUTHENTICATED"},
		{"a certificate without a role, and a token", issue(a.Authority, 0), bearer(stack.OperatorToken), codes.Unauthenticated, "UNAUTHENTICATED"},
		{"a certificate of an unknown role", issue(a.Authority, 0, "spiffe://sluice/root"), nil, codes.Unauthenticated, "UNAUTHENTICATED"},
		{"a certificate of another trust domain", issue(a.Authority, 0, "spiffe://elsewhere/gateway"), nil, codes.Unauthenticated, "UNAUTHENTICATED"},
		{"a certificate of two roles", issue(a.Authority, 0, gateway, "spiffe://sluice/policy"), nil, codes.Unauthenticated, "UNAUTHENTICATED"},
	}
	for _, d := range guardedMethods {
		name := authn.RoleName(d.role)
		for _, tt := range tests {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				ctx := metadata.AppendToOutgoingContext(stack.TimeoutContext(t), tt.md...)
				err := callWithEmptyRequest(ctx, a.DialWithCertificate(t, d.role, tt.cert), d.method)
				if status.Code(err) != tt.code || rpc.Reason(err) != tt.reason {
					t.Errorf("got %v (%s), want %v (%s)", err, rpc.Reason(err), tt.code, tt.reason)
				}
			})
		}
		t.Run(name+"/a role that the contract does not name", func(t *testing.T) {
			t.Parallel()
			err := callWithEmptyRequest(stack.TimeoutContext(t), a.DialWithCertificate(t, d.role, &a.IssueIdentity(t, d.unauthorized).Cert), d.method)
			if status.Code(err) != codes.PermissionDenied || rpc.Reason(err) != "CALLER_REFUSED" {
				t.Errorf("got %v (%s)", err, rpc.Reason(err))
			}
		})
		t.Run(name+"/plaintext", func(t *testing.T) {
			t.Parallel()
			ctx := metadata.AppendToOutgoingContext(stack.TimeoutContext(t), bearer(stack.OperatorToken)...)
			if err := callWithEmptyRequest(ctx, a.DialWithCredentials(t, d.role, insecure.NewCredentials()), d.method); status.Code(err) != codes.Unavailable {
				t.Errorf("got %v", err)
			}
		})
		t.Run(name+"/an operator, who may", func(t *testing.T) {
			t.Parallel()
			if err := callWithEmptyRequest(stack.TimeoutContext(t), a.DialWithToken(t, d.role, stack.OperatorToken), d.method); isRefused(err) {
				t.Errorf("got %v", err)
			}
		})
		t.Run(name+"/a client that means another role", func(t *testing.T) {
			t.Parallel()
			creds := credentials.NewTLS(rpc.ClientTLS(nil, a.Authority.Pool(), d.unauthorized))
			if err := callWithEmptyRequest(stack.TimeoutContext(t), a.DialWithCredentials(t, d.role, creds), d.method); status.Code(err) != codes.Unavailable {
				t.Errorf("got %v", err)
			}
		})
	}
}

// assertion describes a signed principal. The default of each field is the correct value for a call from the gateway to
// the policy service. A test sets a field to make the assertion invalid.
type assertion struct {
	method    jwt.SigningMethod
	key       any
	issuer    string
	audience  string
	issued    time.Duration // relative to now
	life      time.Duration
	principal *identityv1.Principal
}

func (a assertion) sign(t *testing.T, key ed25519.PrivateKey) string {
	t.Helper()
	if a.method == nil {
		a.method = jwt.SigningMethodEdDSA
	}
	if a.key == nil {
		a.key = key
	}
	if a.issuer == "" {
		a.issuer = "spiffe://sluice/gateway"
	}
	if a.audience == "" {
		a.audience = "spiffe://sluice/policy"
	}
	if a.life == 0 {
		a.life = time.Minute
	}
	if a.principal == nil {
		a.principal = devPrincipal()
	}
	raw, err := proto.Marshal(a.principal)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Add(a.issued)
	text, err := jwt.NewWithClaims(a.method, jwt.MapClaims{
		"iss": a.issuer, "aud": []string{a.audience}, "iat": now.Unix(), "exp": now.Add(a.life).Unix(),
		"principal": base64.RawURLEncoding.EncodeToString(raw),
	}).SignedString(a.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// devPrincipal returns a principal that the gateway may assert.
func devPrincipal() *identityv1.Principal {
	return &identityv1.Principal{Tenant: "default", Subject: "agent", Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
}

// Case I1. A service accepts an asserted principal only from the correct signer, within the assertion's lifetime, and
// for the intended audience.
func TestDistributed_InvalidAssertionsOfTheGatewayAreRefused(t *testing.T) {
	t.Parallel()
	a := &rawmesh.Distributed{Distributed: stack.StartDistributed(t, stack.Options{Servers: "  raw: {http: {url: \"http://127.0.0.1:9/mcp\"}, pin: \"off\"}", Policy: stack.OpenPolicy})}
	own, other, wasm := a.IssueIdentity(t, gatewayRole), a.IssueIdentity(t, gatewayRole), a.IssueIdentity(t, wasmagentRole)
	tests := []struct {
		name   string
		with   []assertion
		code   codes.Code
		reason string
	}{
		{"as it should be", []assertion{{}}, codes.OK, ""},
		{"missing", nil, codes.Unauthenticated, "PRINCIPAL_REQUIRED"},
		{"two", []assertion{{}, {}}, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"for another audience", []assertion{{audience: "spiffe://sluice/ratelimit"}}, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"expired", []assertion{{issued: -2 * time.Minute}}, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"of the future", []assertion{{issued: time.Minute}}, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"living too long", []assertion{{life: time.Hour}}, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"unsigned", []assertion{{method: jwt.SigningMethodNone, key: jwt.UnsafeAllowNoneSignatureType}}, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"signed with a shared secret", []assertion{{method: jwt.SigningMethodHS256, key: []byte(own.Peer.Key)}}, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"signed by another gateway", []assertion{{key: other.Key}}, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"signed by another role", []assertion{{key: wasm.Key, issuer: "spiffe://sluice/wasmagent"}}, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"said to be another role's", []assertion{{issuer: "spiffe://sluice/wasmagent"}}, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"nobody", []assertion{{principal: new(identityv1.Principal)}}, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
	}
	conn := a.DialWithCertificate(t, policyRole, &own.Cert)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TimeoutContext(t)
			for _, one := range tt.with {
				ctx = metadata.AppendToOutgoingContext(ctx, authn.PrincipalKey, one.sign(t, own.Key))
			}
			resp, err := policyv1.NewPolicyServiceClient(conn).DecideCall(ctx, &policyv1.DecideCallRequest{
				Call: &policyv1.Call{Method: "tools/call", Server: "raw", Name: "safe", ParamsJson: "{}"},
			})
			if status.Code(err) != tt.code || rpc.Reason(err) != tt.reason {
				t.Errorf("got %v (%s), want %v (%s)", err, rpc.Reason(err), tt.code, tt.reason)
			}
			if allowed := resp.GetDecision().GetEffect() == policyv1.Effect_EFFECT_ALLOW; allowed != (tt.code == codes.OK) {
				t.Errorf("the decision is %v", resp.GetDecision())
			}
		})
	}
}

// Case I1. The wasmagent service may assert only the agents that it runs.
func TestDistributed_WasmagentAssertsOnlyItsAgents(t *testing.T) {
	t.Parallel()
	a := rawmesh.StartDistributed(t, stack.OpenPolicy, "")
	id := a.IssueIdentity(t, wasmagentRole)
	conn := a.DialWithCertificate(t, gatewayRole, &id.Cert)
	agent := &identityv1.Principal{
		Tenant: "default", Subject: "agent:default/a1", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Chain: []*identityv1.Principal{devPrincipal()},
	}
	unchained := proto.CloneOf(agent)
	unchained.Chain = nil
	elsewhere := proto.CloneOf(agent)
	elsewhere.Subject = "agent:acme/a1"
	for name, p := range map[string]*identityv1.Principal{
		"its own agent": agent, "a person": devPrincipal(), "an agent without a creator": unchained, "another tenant's agent": elsewhere,
	} {
		text := assertion{issuer: "spiffe://sluice/wasmagent", audience: "spiffe://sluice/gateway", principal: p}.sign(t, id.Key)
		err := callWithEmptyRequest(metadata.AppendToOutgoingContext(stack.TimeoutContext(t), authn.PrincipalKey, text), conn, gatewayv1.GatewayService_CallTool_FullMethodName)
		if p == agent && isRefused(err) || p != agent && rpc.Reason(err) != "PRINCIPAL_REFUSED" {
			t.Errorf("%s: %v (%s)", name, err, rpc.Reason(err))
		}
	}
}
