//go:build compose

package compose_test

import (
	"context"
	"crypto/tls"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	gateway   = authv1.Role_ROLE_GATEWAY
	identity  = authv1.Role_ROLE_IDENTITY
	policy    = authv1.Role_ROLE_POLICY
	ratelimit = authv1.Role_ROLE_RATELIMIT
	approval  = authv1.Role_ROLE_APPROVAL
	wasmagent = authv1.Role_ROLE_WASMAGENT
	console   = authv1.Role_ROLE_CONSOLE
)

// service describes one of the six services and one of its methods. The contract allows the role in the field caller
// to call the method, and does not allow the role in the field unauthorized to call it.
type service struct {
	role                 authv1.Role
	port, method         string
	caller, unauthorized authv1.Role
}

var services = []service{
	{identity, "IDENTITY_PORT", "/sluice.identity.v1.IdentityService/ReportUnknownKey", gateway, ratelimit},
	{policy, "POLICY_PORT", "/sluice.policy.v1.PolicyService/DecideCall", gateway, ratelimit},
	{ratelimit, "RATELIMIT_PORT", "/sluice.ratelimit.v1.RateLimitService/SettleLease", gateway, policy},
	{approval, "APPROVAL_PORT", "/sluice.approval.v1.ApprovalService/CompleteClaim", gateway, wasmagent},
	{wasmagent, "WASMAGENT_PORT", "/sluice.wasmagent.v1.AgentService/ListAgents", gateway, approval},
	{gateway, "GATEWAY_PORT", "/sluice.gateway.v1.GatewayService/GetStatus", console, policy},
}

// refusals lists the status codes of refusals that come before the service reads the request.
var refusals = []codes.Code{codes.Unavailable, codes.Unauthenticated, codes.PermissionDenied, codes.DeadlineExceeded}

func peerStories(t *testing.T, d *deployment) {
	ours, made, err := pki.EnsureAuthority(d.key("ca"))
	if err != nil || made {
		t.Fatalf("the deployment's CA: created %v, %v", made, err)
	}
	another, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services {
		t.Run(authn.RoleName(s.role), func(t *testing.T) {
			addr := d.addr(s.port)
			right := pki.RoleLeaf(s.caller)
			expired := right
			expired.Life = -1
			t.Run("accepts the role that may call", func(t *testing.T) {
				if err := callAsRole(t, addr, s, ours); slices.Contains(refusals, status.Code(err)) {
					t.Errorf("%s is refused, so the other refusals prove nothing: %v", right.Name, err)
				}
			})
			for name, tt := range map[string]struct {
				creds  credentials.TransportCredentials
				code   codes.Code
				reason string
			}{
				"plaintext":                     {insecure.NewCredentials(), codes.Unavailable, ""},
				"TLS and no credential":         {clientCredentials(t, nil, pki.Leaf{}), codes.Unauthenticated, "UNAUTHENTICATED"},
				"another CA":                    {clientCredentials(t, another, right), codes.Unavailable, ""},
				"an expired certificate":        {clientCredentials(t, ours, expired), codes.Unavailable, ""},
				"our CA without a role":         {clientCredentials(t, ours, pki.Leaf{Name: right.Name}), codes.Unauthenticated, "UNAUTHENTICATED"},
				"our CA with an unknown role":   {clientCredentials(t, ours, pki.Leaf{Name: right.Name, URIs: []string{"spiffe://sluice/root"}}), codes.Unauthenticated, "UNAUTHENTICATED"},
				"our CA with a role elsewhere":  {clientCredentials(t, ours, pki.Leaf{Name: right.Name, URIs: []string{"spiffe://elsewhere/" + right.Name}}), codes.Unauthenticated, "UNAUTHENTICATED"},
				"our CA with two roles":         {clientCredentials(t, ours, pki.Leaf{Name: right.Name, URIs: append(pki.RoleLeaf(s.unauthorized).URIs, right.URIs...)}), codes.Unauthenticated, "UNAUTHENTICATED"},
				"a role that may not call this": {clientCredentials(t, ours, pki.RoleLeaf(s.unauthorized)), codes.PermissionDenied, "CALLER_REFUSED"},
			} {
				t.Run("refuses "+name, func(t *testing.T) {
					err := callWithEmptyRequest(t, addr, s.method, tt.creds)
					if status.Code(err) != tt.code || rpc.Reason(err) != tt.reason {
						t.Errorf("got %v with reason %q, want %s with reason %q", err, rpc.Reason(err), tt.code, tt.reason)
					}
				})
			}
			t.Run("is not accepted as another role", func(t *testing.T) {
				cfg := rpc.ClientTLS(nil, ours.Pool(), s.unauthorized)
				if err := callWithEmptyRequest(t, addr, s.method, credentials.NewTLS(cfg)); status.Code(err) != codes.Unavailable {
					t.Errorf("a client that expects %s is connected: %v", authn.RoleName(s.unauthorized), err)
				}
			})
		})
	}
}

// clientCredentials returns credentials with a certificate that a certificate authority, the parameter from, has
// signed. The client presents the certificate even if the server's list of CAs does not include this authority. If from
// is nil, the client presents no certificate.
func clientCredentials(t *testing.T, from *pki.Authority, leaf pki.Leaf) credentials.TransportCredentials {
	t.Helper()
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true} // the test only checks how the server verifies the client
	if from == nil {
		return credentials.NewTLS(cfg)
	}
	certPEM, keyPEM, err := from.Issue(leaf)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return credentials.NewTLS(cfg)
}

// callWithEmptyRequest calls a method with an empty request and returns the error.
func callWithEmptyRequest(t *testing.T, addr, method string, creds credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return conn.Invoke(ctx, method, new(emptypb.Empty), new(emptypb.Empty))
}

// callAsRole calls a method as the mesh service s.caller. If that service may assert principals, the call is made on
// behalf of an agent.
func callAsRole(t *testing.T, addr string, s service, ca *pki.Authority) error {
	t.Helper()
	certPEM, keyPEM, err := ca.Issue(pki.RoleLeaf(s.caller))
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.NewIdentity(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	ctx, deps := t.Context(), rpc.ClientDeps{}
	if s.caller == gateway {
		ctx = authn.OnBehalfOf(ctx, &identityv1.Principal{Tenant: "default", Subject: "agent", Role: authv1.TokenRole_TOKEN_ROLE_AGENT})
		if deps.Signer, err = authn.NewSigner(s.caller, id.Key); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := rpc.Dial("passthrough:///"+addr, s.role, rpc.ClientTLS(&id.Cert, ca.Pool(), s.role), deps)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.Invoke(ctx, s.method, new(emptypb.Empty), new(emptypb.Empty))
}
