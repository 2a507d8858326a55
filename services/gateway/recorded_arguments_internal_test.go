package gateway

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// withArguments opens a store of recorded arguments for a service of a test.
func withArguments(t *testing.T, s *Service) {
	t.Helper()
	dir := t.TempDir()
	var err error
	s.arguments, err = arguments.Open(arguments.Config{
		Dir: filepath.Join(dir, "arguments"), Keys: filepath.Join(dir, "keys"), Bytes: 1 << 20, Share: 1, Age: time.Hour, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.arguments.Close() })
	s.deps.Log = slog.New(slog.DiscardHandler)
}

// recordArguments stores arguments and writes the intent and the outcome of a call of the tenant acme.
func recordArguments(t *testing.T, s *Service, id, text string) journal.Recorded {
	t.Helper()
	stored, err := s.arguments.Put(id, "ana", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	rec := journal.Record{DecisionID: id, Principal: journal.Principal{Tenant: "acme", Subject: "ana"}, Server: "files", Method: "tools/call", Effect: "allow"}
	rec.Recorded = journal.Recorded{Digest: stored.Digest, Place: stored.Place, Bytes: int64(len(text)), IsRedacted: true}
	if err := s.journal.Intent(t.Context(), &rec); err != nil {
		t.Fatal(err)
	}
	return rec.Recorded
}

// Case I4. Only the tenant of a call reads its arguments.
func TestGetRecordedArguments_OnlyTheTenantOfTheCallReadsThem(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	withArguments(t, s)
	recordArguments(t, s, "call-1", `{"path":"/srv/x"}`)
	plain := s.record(t, "acme", "ana")
	broken := journal.Record{DecisionID: "call-2", Principal: journal.Principal{Tenant: "acme", Subject: "ana"}, Recorded: recordArguments(t, s, "call-3", `{}`)}
	gone := journal.Record{DecisionID: "call-4", Principal: journal.Principal{Tenant: "acme", Subject: "ana"}, Recorded: journal.Recorded{Digest: broken.Recorded.Digest, Place: "20200101T000000.000000000:0"}}
	for _, rec := range []*journal.Record{&broken, &gone} {
		if err := s.journal.Intent(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		ctx      context.Context
		id, want string
	}{
		"the tenant":              {as(t, "acme"), "call-1", ""},
		"another tenant":          {as(t, "evil"), "call-1", "DECISION_UNKNOWN"},
		"an empty tenant":         {as(t, ""), "call-1", "DECISION_UNKNOWN"},
		"no caller":               {t.Context(), "call-1", "DECISION_UNKNOWN"},
		"nothing was recorded":    {as(t, "acme"), plain, "ARGUMENTS_NOT_RECORDED"},
		"an unknown call":         {as(t, "acme"), "never-was", "DECISION_UNKNOWN"},
		"a copy of another call":  {as(t, "acme"), "call-2", "ARGUMENTS_DAMAGED"},
		"a copy that was removed": {as(t, "acme"), "call-4", "ARGUMENTS_REMOVED"},
	} {
		got, err := s.GetRecordedArguments(tt.ctx, &gatewayv1.GetRecordedArgumentsRequest{Id: tt.id})
		if rpc.Reason(err) != tt.want || (err == nil) != (tt.want == "") {
			t.Errorf("%s: %v, %v; want %q", name, got, err, tt.want)
		}
		if err == nil && (got.GetArgumentsJson() != `{"path":"/srv/x"}` || !got.GetRedacted()) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
