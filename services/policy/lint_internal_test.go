package policy

import (
	"context"
	"errors"
	"testing"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// canceledAfterTurn is a context that is canceled after the request has acquired a slot.
type canceledAfterTurn struct {
	context.Context

	cancel context.CancelFunc
	asked  bool
}

func (c *canceledAfterTurn) Err() error {
	if c.asked {
		c.cancel()
	}
	c.asked = true
	return c.Context.Err()
}

func TestLintDocuments_FailsWhenItsRequestEndsDuringTheTests(t *testing.T) {
	t.Parallel()
	s := newTestService(t)
	ctx, cancel := context.WithCancel(authn.WithCaller(t.Context(), &authn.Caller{
		Person: &identityv1.Principal{Tenant: "acme"}, // another tenant's people may not read the catalog, for which a request waits again
	}))
	text := "version: 1\nname: one\nserver: demo\ntests:\n  - {call: {tool: a, server: demo}, want: {action: deny}}\n"
	got, err := s.LintDocuments(&canceledAfterTurn{Context: ctx, cancel: cancel}, &policyv1.LintDocumentsRequest{Documents: []*policyv1.Document{{Path: "one.yaml", Text: text}}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("LintDocuments returned %v, %v", got, err)
	}
}

// The time for the tests of documents in a request is limited to five seconds, although the documents would have more
// time when they are activated. A configuration with less time for all documents applies.
func TestConfigForDrafts_LimitsTheTimeOfTests(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ all, drafts, want time.Duration }{
		{maxTestTime, 0, 5 * time.Second}, {time.Second, 0, time.Second}, {maxTestTime, time.Millisecond, time.Millisecond},
	} {
		s := &Service{cfg: Config{TestsWithin: tt.all, DraftTestsWithin: tt.drafts}}
		if got := s.configForDrafts().TestsWithin; got != tt.want {
			t.Errorf("with %v for all and %v for drafts, the limit is %v, want %v", tt.all, tt.drafts, got, tt.want)
		}
	}
}
