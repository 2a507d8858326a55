package gateway

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// openArguments opens a store of recorded arguments for the service s, which a test has created.
func openArguments(t *testing.T, s *Service) {
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

// Lists contain recorded arguments only for operators who ask for them. Arguments that are too large are left out.
func TestListDecisions_ReturnsArgumentsToOperators(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	for id, text := range map[string]string{"plain": `{"path":"/srv/x"}`, "large": `"` + strings.Repeat("x", 300<<10) + `"`, "replaced": `{}`} {
		rec := journal.Record{DecisionID: id, Principal: journal.Principal{Tenant: "acme", Subject: "ana"}, Recorded: recordArguments(t, s, "copy-"+id, text)}
		stored, err := s.arguments.Put(id, "ana", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		rec.Recorded.Digest, rec.Recorded.Place, rec.Recorded.IsRedacted = stored.Digest, stored.Place, id == "replaced"
		if err := s.journal.Intent(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
	}
	list := func(role authv1.TokenRole, with bool) (map[string]string, error) {
		ctx := authn.WithCaller(t.Context(), &authn.Caller{Person: &identityv1.Principal{Tenant: "acme", Subject: "op", Role: role}})
		resp, err := s.ListDecisions(ctx, &gatewayv1.ListDecisionsRequest{WithArguments: with})
		out := make(map[string]string)
		for _, r := range resp.GetRecords() {
			out[r.GetDecisionId()] = r.GetRecordedArguments().GetArgumentsJson()
		}
		return out, err
	}
	operator, err := list(authv1.TokenRole_TOKEN_ROLE_OPERATOR, true)
	if err != nil || operator["plain"] != `{"path":"/srv/x"}` || operator["large"] != "" || operator["replaced"] != `{}` {
		t.Errorf("an operator gets %v, %v", operator, err)
	}
	for name, with := range map[string]bool{"with arguments": true, "without arguments": false} {
		got, err := list(authv1.TokenRole_TOKEN_ROLE_VIEWER, with)
		if with != (rpc.Reason(err) == "OPERATOR_REQUIRED") || got["plain"] != "" {
			t.Errorf("a viewer gets %v, %v %s", got, err, name)
		}
	}
	if got, err := list(authv1.TokenRole_TOKEN_ROLE_OPERATOR, false); err != nil || got["plain"] != "" {
		t.Errorf("an operator who does not ask gets %v, %v", got, err)
	}
}

// If arguments can't be recorded, the status says so. It contains the cause, but no file names.
func TestDegraded_SaysThatArgumentsCannotBeRecorded(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	if err := s.arguments.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.arguments.Put("a", "ana", nil); err == nil {
		t.Fatal("a closed store stores a copy")
	}
	if got := strings.Join(s.Degraded(), "; "); !strings.Contains(got, "the arguments of calls can't be recorded (the log of the gateway has the reason)") {
		t.Errorf("degraded: %q", got)
	}
	full := argumentsFault(fmt.Errorf("write: %w", &fs.PathError{Op: "write", Path: "/srv/data/x", Err: syscall.ENOSPC}))
	if !strings.Contains(full, "(no space left on device)") || strings.Contains(full, "/srv") {
		t.Error(full)
	}
}

func TestGetStatus_ShowsTheSizeOfRecordedArguments(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	for _, want := range []bool{false, true} {
		resp, err := s.GetStatus(as(t, "default"), new(gatewayv1.GetStatusRequest))
		if got := resp.GetRecordedArguments(); err != nil || (got != nil) != want {
			t.Fatalf("%v, %v", got, err)
		} else if want && (got.GetBytes() < 100<<10 || got.GetMaxBytes() != 1<<20 || got.GetOldest() == nil || got.GetRemovedEarly() != nil) {
			t.Errorf("%v", got)
		}
		recordArguments(t, s, "call-1", strings.Repeat("x", 100<<10))
	}
	for i := range 12 {
		recordArguments(t, s, fmt.Sprint("more-", i), strings.Repeat("x", 100<<10))
	}
	resp, err := s.GetStatus(as(t, "default"), new(gatewayv1.GetStatusRequest))
	if got := resp.GetRecordedArguments(); err != nil || got.GetBytes() > 1<<20 || got.GetRemovedEarly() == nil {
		t.Errorf("after copies were removed: %v, %v", got, err)
	}
	if resp, err := s.GetStatus(as(t, "acme"), new(gatewayv1.GetStatusRequest)); err != nil || resp.GetRecordedArguments() != nil {
		t.Errorf("another tenant gets %v, %v", resp.GetRecordedArguments(), err)
	}
}

// recordArguments stores arguments, and records the intent of a call by the tenant acme.
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

// Case I4. Only callers that belong to the tenant of a call can read the call's arguments.
func TestGetRecordedArguments_OnlyTheTenantOfTheCallReadsThem(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
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
