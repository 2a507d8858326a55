package notice_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/approval/internal/view"
)

// hidden is the value of an argument. No webhook and no mail may contain it.
const hidden = "4111-1111"

type senderFixture struct {
	cfg   notice.Config
	store *store.Store
	log   *lockedBuffer
	// ahead is the time by which the store's clock is ahead of the real time.
	mu    sync.Mutex
	ahead time.Duration
	// before is the previous call. Views compare the current call with it. It may be nil.
	before *lifecycle.Record
	// givenUp is the number of notices that the store reported as given up, because every attempt to send them failed.
	givenUp int64
	// presses are the button presses that the sender has received.
	presses []notice.Press
	stop    context.CancelFunc
	ended   chan error
}

// lockedBuffer is a log that a test can read while the sender writes to it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func start(t *testing.T, cfg notice.Config) *senderFixture {
	t.Helper()
	s := &senderFixture{cfg: cfg, log: new(lockedBuffer)}
	var err error
	s.store, err = store.Open(t.Context(), store.Config{
		Source: "sqlite", File: filepath.Join(t.TempDir(), "approvals.db"), Channels: cfg.Channels(), Log: slog.New(slog.DiscardHandler),
		Observe: func(_ context.Context, c store.Changes) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.givenUp += c.GivenUp
		},
		Now: func() time.Time {
			s.mu.Lock()
			defer s.mu.Unlock()
			return time.Now().Add(s.ahead)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.run(t)
	t.Cleanup(func() {
		s.kill(t)
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// run starts a sender. The method kill stops it.
func (s *senderFixture) run(t *testing.T) {
	t.Helper()
	sender, err := notice.New(s.cfg, notice.Deps{
		Vote: func(_ context.Context, p notice.Press) string {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.presses = append(s.presses, p)
			return "heard <" + p.Subject + ">"
		},
		Store: s.store, Log: slog.New(slog.NewTextHandler(s.log, nil)),
		Draw: s.draw,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background()) //nolint:usetesting // it is cancelled in the clean-up
	s.stop, s.ended = stop, make(chan error, 1)
	go func() { s.ended <- sender.Run(ctx) }()
}

// draw returns the view of the approval in the parameter asked. It returns nil if the approval is no longer pending, or
// if approvers have been asked again since.
func (s *senderFixture) draw(ctx context.Context, asked *approvalv1.Approval) (*approvalv1.View, error) {
	var r *lifecycle.Record
	err := s.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		r, err = tx.GetAnyTenant(ctx, asked.GetId())
		return err
	})
	if err != nil || r.Approval.GetState() != approvalv1.ApprovalState_APPROVAL_STATE_PENDING ||
		!r.Approval.GetDecideBefore().AsTime().Equal(asked.GetDecideBefore().AsTime()) {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := view.Draw(r, view.Facts{Previous: s.before})
	if err != nil {
		return nil, err
	}
	return v.Part(0, "")
}

// kill stops the sender. It may be called more than once.
func (s *senderFixture) kill(t *testing.T) {
	t.Helper()
	s.stop()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	s.ended <- nil // for the next call to kill
}

func (s *senderFixture) advanceClock(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
}

// openRequest returns a call that needs approval. An argument of the call contains the hidden value.
func openRequest(id string, change ...func(*lifecycle.OpenRequest)) lifecycle.OpenRequest {
	q := lifecycle.OpenRequest{
		ID: id, DecisionID: "d-" + id, Digest: []byte("digest-" + id),
		Requester: &identityv1.Principal{Tenant: "acme", Subject: "bot", Agent: "dev", Owner: "olga"},
		Call: &approvalv1.BoundCall{ServerIdentity: "http http://pay/mcp", Call: &policyv1.Call{
			Server: "pay", Name: "refund", ParamsJson: `{"name":"refund","arguments":{"card":"` + hidden + `"}}`,
		}},
		Decision: &policyv1.Decision{
			Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, RuleDigest: []byte("rule"), Message: "money moves",
			Rule: &policyv1.RuleRef{Document: "pay", Rule: "refunds"}, Approval: &policyv1.ApprovalTerms{Quorum: 1},
		},
		Times: lifecycle.Times{Decide: time.Hour, Execute: time.Hour},
	}
	for _, f := range change {
		f(&q)
	}
	return q
}

func (s *senderFixture) ask(t *testing.T, id string, change ...func(*lifecycle.OpenRequest)) {
	t.Helper()
	q := openRequest(id, change...)
	err := s.store.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error { return tx.Save(ctx, lifecycle.Open(q, tx.Now)) })
	if err != nil {
		t.Fatal(err)
	}
}

// setPrevious makes views compare a call with an earlier call that has another argument.
func (s *senderFixture) setPrevious(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = lifecycle.Open(openRequest("before", func(q *lifecycle.OpenRequest) { q.Call.Call.ParamsJson = `{"arguments":{"card":"4000-0000"}}` }), time.Now())
}

// askAgain changes the terms of an approval, so that approvers are asked again.
func (s *senderFixture) askAgain(t *testing.T, id string) {
	t.Helper()
	err := s.store.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		r, err := tx.Get(ctx, "acme", id)
		if err != nil {
			return err
		}
		r.UpdateDecision(&policyv1.Decision{Approval: &policyv1.ApprovalTerms{Quorum: 1}}, r.Times, tx.Now)
		return tx.Save(ctx, r)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// decide casts a vote as ana.
func (s *senderFixture) decide(t *testing.T, id string, verdict approvalv1.Verdict) {
	t.Helper()
	err := s.store.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		r, err := tx.Get(ctx, "acme", id)
		if err != nil {
			return err
		}
		err = r.Vote(lifecycle.Ballot{
			Voter: &identityv1.Principal{Tenant: "acme", Subject: "ana"}, Verdict: verdict, ShownDigest: []byte("v"), ViewDigest: []byte("v"),
			Channel: approvalv1.VoteChannel_VOTE_CHANNEL_TOKEN,
		}, tx.Now)
		return errors.Join(err, tx.Save(ctx, r))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *senderFixture) votes() []notice.Press {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]notice.Press(nil), s.presses...)
}

func (s *senderFixture) count(t *testing.T, channel string, how store.NoticeEnd) (n int) {
	t.Helper()
	err := s.store.Do(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		n, err = tx.CountNotices(ctx, channel, how)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
