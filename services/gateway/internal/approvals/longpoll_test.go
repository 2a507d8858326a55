package approvals_test

import (
	"log/slog"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
)

type unusedService struct {
	approvalv1.ApprovalServiceClient
}

func counts(t *testing.T) *meters.Meters {
	t.Helper()
	m, err := meters.New(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestHoldUntil_DependsOnTheClientName(t *testing.T) {
	t.Parallel()
	w, err := approvals.NewClient(approvals.Config{Hold: 45 * time.Second, MaxPending: 5, Execute: 5 * time.Minute, Holder: "gw", ClientHolds: []approvals.ClientHold{
		{Name: "claude-code", Hold: 4 * time.Minute}, {Name: "*inspector*", Hold: 0}, {Name: "a.c (x*)", Hold: time.Second}, {Name: "claude*", Hold: time.Minute},
	}}, unusedService{}, counts(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	for client, want := range map[string]time.Duration{
		"claude-code": 4 * time.Minute, "claude-ai": time.Minute, "Claude-code": 45 * time.Second, "@mcp/inspector/cli": 0, "inspector": 0,
		"a.c (x)": time.Second, "a.c (xy\nz)": time.Second, "abc (x)": 45 * time.Second, "": 45 * time.Second, "my claude": 45 * time.Second,
	} {
		if got := w.HoldUntil(client, now).Sub(now); got != want {
			t.Errorf("%q is held for %v, want %v", client, got, want)
		}
	}
}

func TestNewClient_RefusesInvalidConfigurations(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for name, make := range map[string]func() (*approvals.Client, error){
		"no meters": func() (*approvals.Client, error) {
			return approvals.NewClient(approvals.Config{MaxPending: 5, Execute: 5 * time.Minute, Holder: "gw"}, unusedService{}, nil, log)
		},
		"no service": func() (*approvals.Client, error) {
			return approvals.NewClient(approvals.Config{MaxPending: 5, Execute: 5 * time.Minute, Holder: "gw"}, nil, counts(t), log)
		},
		"no log": func() (*approvals.Client, error) {
			return approvals.NewClient(approvals.Config{MaxPending: 5, Execute: 5 * time.Minute, Holder: "gw"}, unusedService{}, counts(t), nil)
		},
		"no name": func() (*approvals.Client, error) {
			return approvals.NewClient(approvals.Config{MaxPending: 5, Execute: 5 * time.Minute}, unusedService{}, counts(t), log)
		},
		"no call may wait": func() (*approvals.Client, error) {
			return approvals.NewClient(approvals.Config{Holder: "gw"}, unusedService{}, counts(t), log)
		},
		"no time to run": func() (*approvals.Client, error) {
			return approvals.NewClient(approvals.Config{MaxPending: 5, Holder: "gw"}, unusedService{}, counts(t), log)
		},
		"less than no time": func() (*approvals.Client, error) {
			return approvals.NewClient(approvals.Config{MaxPending: 5, Execute: 5 * time.Minute, Holder: "gw", Hold: -1}, unusedService{}, counts(t), log)
		},
		"less, of a client": func() (*approvals.Client, error) {
			return approvals.NewClient(approvals.Config{MaxPending: 5, Execute: 5 * time.Minute, Holder: "gw", ClientHolds: []approvals.ClientHold{{Name: "*", Hold: -1}}}, unusedService{}, counts(t), log)
		},
	} {
		if w, err := make(); err == nil || w != nil {
			t.Errorf("%s: no error", name)
		}
	}
}
