package edge_test

import (
	"context"
	"crypto/ed25519"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Case I1. A request with bad credentials is refused before its body is read.
func TestIdentity_BadCredentialsAreRefused(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	good := f.Connect(t)
	tests := []struct {
		name, header string
		status       int
		code         string
	}{
		{"none", "", http.StatusUnauthorized, "unauthenticated"},
		{"wrong", "Bearer " + strings.Repeat("x", 40), http.StatusUnauthorized, "unauthenticated"},
		{"a prefix of a good one", "Bearer " + stack.AgentToken[:len(stack.AgentToken)-1], http.StatusUnauthorized, "unauthenticated"},
		{"another scheme", "Basic " + stack.AgentToken, http.StatusUnauthorized, "unauthenticated"},
		{"alg none", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZ2VudCIsImV4cCI6NDEwMjQ0NDgwMH0.", http.StatusUnauthorized, "unauthenticated"},
		{"an operator's", "Bearer " + stack.OperatorToken, http.StatusForbidden, "forbidden"},
		{"a viewer's", "Bearer " + stack.ViewerToken, http.StatusForbidden, "forbidden"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := good.WithToken("")
			c.Header = http.Header{}
			if tt.header != "" {
				c.Header.Set("Authorization", tt.header)
			}
			resp := c.Call("safe", "{}")
			if resp.Status != tt.status || resp.Decision(t).Code != tt.code {
				t.Errorf("%d %s, want %d %s", resp.Status, resp.Body, tt.status, tt.code)
			}
			if tt.status == http.StatusUnauthorized && resp.Header.Get("WWW-Authenticate") == "" {
				t.Error("401 without WWW-Authenticate")
			}
		})
	}
	if n := len(f.Upstream.Calls()); n != 0 {
		t.Errorf("%d calls reached the server", n)
	}
}

// Case I2. An identity that a request declares is ignored. The record contains the subject of the token.
func TestIdentity_DeclaredIdentityIsIgnored(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	c := f.Connect(t)
	c.Header = http.Header{
		"X-Principal": {"root"}, "Sluice-Principal": {"forged"}, "X-Forwarded-User": {"root"},
		"Baggage": {"subject=root"}, "Forwarded": {"for=root"},
	}
	resp := c.Post(stack.CallRequest(`{"name":"safe","arguments":{},"_meta":{"subject":"root","io.modelcontextprotocol/clientInfo":{"name":"root","version":"1"},"baggage":"subject=root"}}`))
	if resp.IsError(t) || resp.Status != http.StatusOK {
		t.Fatalf("%d %s", resp.Status, resp.Body)
	}
	calls := f.Upstream.Calls()
	if len(calls) != 1 {
		t.Fatalf("%d calls reached the server, want 1", len(calls))
	}
	for _, name := range []string{"X-Principal", "Sluice-Principal", "X-Forwarded-User", "Baggage", "Forwarded", "Authorization", "Cookie"} {
		if v := calls[0].Header.Get(name); v != "" {
			t.Errorf("the server was sent %s: %s", name, v)
		}
	}
	if strings.Contains(string(calls[0].Body), "baggage") {
		t.Errorf("the server was sent baggage: %s", calls[0].Body)
	}
	for _, r := range f.Records(t) {
		if r.GetKind() == gatewayv1.RecordKind_RECORD_KIND_INTENT && r.GetPrincipal().GetSubject() != "agent" {
			t.Errorf("the record names %q, want the token's subject", r.GetPrincipal().GetSubject())
		}
	}
}

// Case I4. A request with the id of another principal's session gets the same response as a request with the id of a
// session that does not exist.
func TestIdentity_ForeignSessionIsUnknown(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	mine := f.Connect(t)
	theirs := mine.WithToken(stack.OtherToken)
	foreign := theirs.Call("safe", "{}")
	theirs.Header = http.Header{"Mcp-Session-Id": {"NEVERWASASESSION"}}
	never := theirs.Call("safe", "{}")
	for name, resp := range map[string]stack.Response{"foreign": foreign, "never was": never} {
		if resp.Status != http.StatusNotFound || resp.Decision(t).Code != "session_unknown" {
			t.Errorf("%s: %d %s", name, resp.Status, resp.Body)
		}
	}
	if foreign.Text(t) != never.Text(t) {
		t.Errorf("the responses differ: %q and %q", foreign.Text(t), never.Text(t))
	}
	if n := len(f.Upstream.Calls()); n != 0 {
		t.Errorf("%d calls reached the server", n)
	}
}

// Case I2. An agent's token may call no RPC except health, and a principal that is forged in the request is refused.
func TestIdentity_AgentTokenIsRefusedOverGRPC(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	ask := func(ctx context.Context, conn grpc.ClientConnInterface, subject *identityv1.Principal) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := policyv1.NewPolicyServiceClient(conn).DecideCall(ctx, &policyv1.DecideCallRequest{
			Call: &policyv1.Call{Server: "raw", Name: "safe"}, Subject: subject,
		})
		return err
	}
	subject := &identityv1.Principal{Tenant: "default", Subject: "agent", Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
	forged := metadata.AppendToOutgoingContext(t.Context(), authn.PrincipalKey, forgePrincipal(t))
	tests := []struct {
		name    string
		ctx     context.Context
		token   string
		subject *identityv1.Principal
		code    codes.Code
		reason  string
	}{
		{"an operator with a subject", t.Context(), stack.OperatorToken, subject, codes.OK, ""},
		{"an operator without a subject", t.Context(), stack.OperatorToken, nil, codes.InvalidArgument, "SUBJECT_MISSING"},
		{"no token", t.Context(), "", subject, codes.Unauthenticated, "UNAUTHENTICATED"},
		{"an agent", t.Context(), stack.AgentToken, subject, codes.PermissionDenied, "CALLER_REFUSED"},
		{"a viewer", t.Context(), stack.ViewerToken, subject, codes.PermissionDenied, "CALLER_REFUSED"},
		{"a forged principal beside a token", forged, stack.OperatorToken, subject, codes.Unauthenticated, "PRINCIPAL_REFUSED"},
		{"a forged principal alone", forged, "", subject, codes.Unauthenticated, "UNAUTHENTICATED"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := ask(tt.ctx, f.DialWithToken(t, tt.token), tt.subject)
			if status.Code(err) != tt.code || rpc.Reason(err) != tt.reason {
				t.Errorf("got %v %q (%v), want %v %q", status.Code(err), rpc.Reason(err), err, tt.code, tt.reason)
			}
		})
	}
}

// forgePrincipal returns a principal signed with a key that belongs to none of the mesh services.
func forgePrincipal(t *testing.T) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := authn.NewSigner(authv1.Role_ROLE_GATEWAY, key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signer.Sign(&identityv1.Principal{Tenant: "default", Subject: "root"}, authv1.Role_ROLE_POLICY)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
