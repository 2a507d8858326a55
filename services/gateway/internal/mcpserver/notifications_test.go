package mcpserver_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Case T4. A server's notification reaches a client if MCP defines the notification and the policy does not deny it. If
// MCP does not define the notification but a rule can allow its method, the policy service evaluates the notification,
// and the decision is recorded. The notification then reaches the client only if the policy allows it.
func TestVendorNotifications_OfServersNeedARule(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		method       string
		silent, lets []string
		effect       policyv1.Effect
		hears, asked bool
	}{
		"a line of the log":         {"notifications/message", nil, nil, 0, true, false},
		"a line that is denied":     {"notifications/message", []string{"notifications/message"}, nil, 0, false, false},
		"a list that has changed":   {"notifications/prompts/list_changed", nil, nil, 0, true, false},
		"a change that is denied":   {"notifications/prompts/list_changed", []string{"notifications/prompts/list_changed"}, nil, 0, false, false},
		"of a list that is denied":  {"notifications/resources/list_changed", nil, nil, 0, false, false},
		"not known":                 {"notifications/x", nil, nil, 0, false, false},
		"of tasks":                  {"notifications/tasks", nil, []string{"notifications/tasks"}, policyv1.Effect_EFFECT_ALLOW, false, false},
		"a rule may let it":         {"notifications/x", nil, []string{"notifications/x"}, policyv1.Effect_EFFECT_ALLOW, true, true},
		"and policy does not":       {"notifications/x", nil, []string{"notifications/x"}, policyv1.Effect_EFFECT_DENY, false, true},
		"no notification by name":   {"x/y", nil, []string{"x/y"}, policyv1.Effect_EFFECT_ALLOW, false, false},
		"as one that needs no rule": {"notifications/initialized", nil, []string{"notifications/initialized"}, policyv1.Effect_EFFECT_ALLOW, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				w.Policy.DeniedNotifications, w.Policy.AllowedMethods = tt.silent, tt.lets
				w.Policy.Access.Methods = []string{"prompts/list"}
				h := w.connect()
				w.files.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
					w.Policy.Change(func() { w.Policy.Decision = &policyv1.Decision{Effect: tt.effect} })
					events([]byte(`{"jsonrpc":"2.0","method":"` + tt.method + `","params":{"n":9007199254740993}}`))
					return gatewaytest.Result(r, `{}`), nil
				}
				got := w.do("POST", "/mcp/files", toolCall, h)
				if strings.Contains(got.body, "9007199254740993") != tt.hears {
					t.Errorf("the client heard %s", got.body)
				}
				records := append(w.Journal.Records(journal.KindIntent), w.Journal.Records(journal.KindRefusal)...)
				if asked := slices.ContainsFunc(records, func(r journal.Record) bool { return r.Method == tt.method && r.FromServer }); asked != tt.asked {
					t.Errorf("on record are %+v", records)
				}
			})
		})
	}
}

// Case T4. A client sends a notification that MCP does not define. If the policy allows it, the server receives the
// bytes that were evaluated. Otherwise the refusal is recorded.
func TestVendorNotifications_OfClientsNeedARule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		w.Policy.AllowedMethods = []string{"notifications/x"}
		h := w.connect()
		note := func(method string) {
			t.Helper()
			if got := w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","method":"`+method+`","params":{"n":1.50,"_meta":{"dev.sluice/run":"r"}}}`, h); got.status != http.StatusAccepted {
				t.Errorf("%s: %d %s", method, got.status, got.body)
			}
		}
		note("notifications/x")
		note("notifications/y")
		w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
		note("notifications/x")
		var got []string
		for _, n := range w.files.Notified(0) {
			if strings.Contains(n, "notifications/x") || strings.Contains(n, "notifications/y") {
				got = append(got, n)
			}
		}
		if len(got) != 1 || got[0] != `{"jsonrpc":"2.0","method":"notifications/x","params":{"n":1.50,"_meta":{}}}` {
			t.Errorf("the server was notified of %q", got)
		}
	})
}
