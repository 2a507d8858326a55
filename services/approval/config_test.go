package approval_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
)

const settings = `
data: /srv/data
stores: {approval: "postgres://x:${env:PASSWORD}@db/approvals"}
approvals:
  decide: 1h
  execute: 2m
  max_pending: 7
  max_asked: {max: 8, window: 2h}
  owner_may_approve: true
  notify:
    webhooks:
      - {name: hook, url: "https://hooks.example/x", secret: "${env:HOOK}", tenant: acme, after: 0.5}
    mail:
      server: mail.example:587
      tls: tls
      ca: ca.pem
      user: sluice
      password: "${env:PASSWORD}"
      from: sluice@example.com
      lists: [{name: ops, to: [ana@example.com], tenant: acme, after: 0.25}]
    slack: {name: chat, tenant: default, app_token: "${env:APP}", bot_token: "${env:BOT}", channel: C01, people: {U01: ana}}
`

// FromFile reads each key of the file and resolves secrets. If an environment variable is missing, FromFile fails.
func TestFromFile_ReadsEveryKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(path, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{"PASSWORD": "s3cret", "HOOK": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "APP": "xapp-1", "BOT": "xoxb-1"}
	env := func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	f, err := config.Load(path, env)
	if err != nil {
		t.Fatal(err)
	}
	got, err := approval.FromFile(f, env)
	if err != nil {
		t.Fatal(err)
	}
	want := approval.Config{
		Decide: time.Hour, Execute: 2 * time.Minute, CoolDown: 10 * time.Minute, MaxPending: 7, MaxAsked: 8, AskedWindow: 2 * time.Hour, OwnerMayApprove: true,
		Source: "postgres://x:s3cret@db/approvals", Data: "/srv/data",
		Notices: notice.Config{
			Webhooks: []notice.Webhook{{Target: notice.Target{Name: "hook", Tenant: "acme", After: 0.5}, URL: "https://hooks.example/x", Secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}},
			Mail: &notice.Mail{
				Server: "mail.example:587", TLS: "tls", CA: filepath.Join(filepath.Dir(path), "ca.pem"), User: "sluice", Password: "s3cret", From: "sluice@example.com",
				Lists: []notice.MailList{{Target: notice.Target{Name: "ops", Tenant: "acme", After: 0.25}, To: []string{"ana@example.com"}}},
			},
			Slack: &notice.Slack{Target: notice.Target{Name: "chat", Tenant: "default"}, AppToken: "xapp-1", BotToken: "xoxb-1", Channel: "C01", People: map[string]string{"U01": "ana"}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name := range values {
		old := values[name]
		delete(values, name)
		if _, err := approval.FromFile(f, env); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
		values[name] = old
	}
}

// New logs a warning only if owner_may_approve is on.
func TestNew_WarnsIfOwnersMayApprove(t *testing.T) {
	t.Parallel()
	for _, may := range []bool{true, false} {
		cfg := approval.DefaultConfig()
		cfg.Data, cfg.OwnerMayApprove = t.TempDir(), may
		log := new(bytes.Buffer)
		svc, err := approval.New(t.Context(), cfg, newFakePolicy(t).deps(approval.Deps{Tokens: new(authn.Tokens), Meter: noop.Meter{}, Tracer: tracenoop.Tracer{}, Log: slog.New(slog.NewTextHandler(log, nil))}))
		if err != nil {
			t.Fatal(err)
		}
		if err := svc.Close(); err != nil {
			t.Error(err)
		}
		if said := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), config.OwnerMayApproveWarning); said != may {
			t.Errorf("owner_may_approve is %t, and the log is %s", may, log)
		}
	}
}
