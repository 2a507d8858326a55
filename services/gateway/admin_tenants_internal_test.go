package gateway

import (
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/forms"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

func TestGetStatus_OtherTenantsSeeOnlyTheirSessions(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	s.servers = map[string]*upstream.Server{"payroll-of-umbrella": reached(t, new(oneServer))}
	for _, tenant := range []string{"default", "acme", "acme", "umbrella", "umbrella", "umbrella"} {
		s.add(t, tenant)
	}
	s.record(t, "umbrella", "mallory")
	s.forms.RecordUnanswered(t.Context(), forms.Client{Tenant: "umbrella", Subject: "mallory", Name: "mute", Version: "1"})
	for name, tt := range map[string]struct {
		tenant   string
		role     authv1.TokenRole
		sessions int32
		own      bool
	}{
		"an operator of the installation": {"default", authv1.TokenRole_TOKEN_ROLE_OPERATOR, 6, false},
		"a viewer of the installation":    {"default", authv1.TokenRole_TOKEN_ROLE_VIEWER, 6, false},
		"an operator of a tenant":         {"acme", authv1.TokenRole_TOKEN_ROLE_OPERATOR, 2, true},
		"a viewer of a tenant":            {"acme", authv1.TokenRole_TOKEN_ROLE_VIEWER, 2, true},
		"a viewer without sessions":       {"initech", authv1.TokenRole_TOKEN_ROLE_VIEWER, 0, true},
		"a person of no tenant":           {"", authv1.TokenRole_TOKEN_ROLE_VIEWER, 0, true},
	} {
		got, err := s.GetStatus(authn.WithCaller(t.Context(), &authn.Caller{Person: &identityv1.Principal{Tenant: tt.tenant, Subject: "op", Role: tt.role}}), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.GetSessions() != tt.sessions || got.GetOwnTenantOnly() != tt.own || (len(got.GetServers()) == 0) != tt.own || (got.GetJournal() == nil) != tt.own {
			t.Errorf("%s reads\n%s", name, prototext.Format(got))
		}
		if isOperator := tt.tenant == "default" && tt.role == authv1.TokenRole_TOKEN_ROLE_OPERATOR; (len(got.GetSilentClients()) == 1) != isOperator {
			t.Errorf("%s reads the silent clients %v", name, got.GetSilentClients())
		}
		if got.GetVersion() != s.cfg.Version || got.GetStarted() == nil || !got.GetJournalHealthy() {
			t.Errorf("%s does not read how the gateway is:\n%s", name, prototext.Format(got))
		}
	}
	nobody, err := s.GetStatus(t.Context(), nil)
	if err != nil || !nobody.GetOwnTenantOnly() || len(nobody.GetServers()) > 0 || nobody.GetSessions() != 0 {
		t.Errorf("a call without a caller reads %v, %v", nobody, err)
	}
	role, err := s.GetStatus(authn.WithCaller(t.Context(), &authn.Caller{Role: authv1.Role_ROLE_CONSOLE}), nil)
	if err != nil || role.GetOwnTenantOnly() || len(role.GetServers()) != 1 {
		t.Errorf("the console reads %v, %v", role, err)
	}
	agent := &identityv1.Principal{Tenant: "acme"}
	forAcme, err := s.GetStatus(authn.WithCaller(t.Context(), &authn.Caller{Role: authv1.Role_ROLE_CONSOLE, Principal: agent}), nil)
	if err != nil || !forAcme.GetOwnTenantOnly() || forAcme.GetSessions() != 2 {
		t.Errorf("the console for a person of a tenant reads %v, %v", forAcme, err)
	}
}
