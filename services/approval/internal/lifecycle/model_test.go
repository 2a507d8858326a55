package lifecycle_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
)

// recordModel is a random model of one approval. It contains the record and the values that the method check expects.
// The field sent contains the id of the successful claim of each attempt.
type recordModel struct {
	r       *lifecycle.Record
	now     time.Time
	claims  []string
	sent    map[int32]string
	version int64
	ended   approvalv1.ApprovalState
}

// TestRecord_KeepsItsInvariants applies random operations to approvals. It checks four invariants: for each attempt at
// most one claim succeeds, an ended approval does not change its state, a denied call is not claimed, and every
// transition is in the history.
func TestRecord_KeepsItsInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := &recordModel{r: open(decision(quorum(rapid.Int32Range(1, 3).Draw(t, "quorum")))), now: start, sent: make(map[int32]string), version: 1}
		t.Repeat(map[string]func(*rapid.T){
			"":     l.check,
			"wait": func(t *rapid.T) { l.wait(t) },
			"ask": func(t *rapid.T) {
				l.r.UpdateDecision(decision(quorum(rapid.Int32Range(1, 3).Draw(t, "quorum"))), times, l.now)
			},
			"vote":     l.vote,
			"claim":    l.claim,
			"renew":    func(t *rapid.T) { _ = l.r.Renew(l.known(t), "gw", time.Minute, l.now) },
			"release":  func(t *rapid.T) { _ = l.r.Release(l.known(t), "gw", "x", nil, l.now) },
			"complete": l.complete,
			"resolve": func(t *rapid.T) {
				_ = l.r.Resolve("op", rapid.SampledFrom([]approvalv1.Resolution{1, 2}).Draw(t, "word"), "x", l.now)
			},
			"cancel": func(*rapid.T) { _ = l.r.Cancel("op", "x", l.now) },
		})
	})
}

func (l *recordModel) wait(t *rapid.T) {
	l.now = l.now.Add(time.Duration(rapid.Int64Range(1, int64(10*time.Minute)).Draw(t, "time")))
	l.r.ApplyDue(l.now)
}

func (l *recordModel) vote(t *rapid.T) {
	b := approveBallot(person(rapid.SampledFrom([]string{"ana", "ben", "cid", "bot", "olga"}).Draw(t, "who")))
	if rapid.IntRange(0, 5).Draw(t, "denies") == 0 {
		b = denyBallot(b.Voter)
	}
	_ = l.r.Vote(b, l.now)
}

func (l *recordModel) known(t *rapid.T) string {
	return rapid.SampledFrom(append([]string{"none"}, l.claims...)).Draw(t, "claim")
}

func (l *recordModel) claim(t *rapid.T) {
	id := fmt.Sprintf("c%d", len(l.claims))
	if len(l.claims) > 0 && rapid.Bool().Draw(t, "again") {
		id = l.known(t)
	} else {
		l.claims = append(l.claims, id)
	}
	d := rapid.SampledFrom([]*policyv1.Decision{allow(), allow(), idempotent(), l.r.Decision, {Effect: policyv1.Effect_EFFECT_DENY}}).Draw(t, "decision")
	attempt := l.r.Approval.GetAttempt() - rapid.Int32Range(0, 1).Draw(t, "behind")
	before := l.r.Approval.GetState()
	refused, err := l.r.Claim(claimRequest(id, attempt, withDecision(d)), l.now)
	if refused != nil || err != nil {
		return
	}
	attempt = l.r.Approval.GetClaim().GetAttempt() // a repeated claim succeeds with any attempt
	if holds := l.sent[attempt]; holds != "" && holds != id {
		t.Fatalf("attempt %d was given to %s and to %s", attempt, holds, id)
	}
	if name := lifecycle.StateName(before); name != "approved" && name != "outcome_unknown" && l.sent[attempt] != id {
		t.Fatalf("claimed while %s", name)
	}
	if !l.now.Before(l.r.Approval.GetExecuteBefore().AsTime()) && l.sent[attempt] != id {
		t.Fatal("claimed after the time to execute")
	}
	l.sent[attempt] = id
}

func (l *recordModel) complete(t *rapid.T) {
	outcome := rapid.SampledFrom([]approvalv1.CallOutcome{1, 2, 3, 4}).Draw(t, "outcome")
	_, _ = l.r.Complete(l.known(t), "gw", outcome, l.now)
}

func (l *recordModel) check(t *rapid.T) {
	a := l.r.Approval
	if l.ended != 0 && a.GetState() != l.ended {
		t.Fatalf("the approval ended as %v and is %v", l.ended, a.GetState())
	}
	if l.r.Ended() {
		l.ended = a.GetState()
	}
	if a.GetVersion() < l.version || int64(len(l.r.Moves)) != a.GetVersion() {
		t.Fatalf("version %d after %d, with %d moves", a.GetVersion(), l.version, len(l.r.Moves))
	}
	l.version = a.GetVersion()
	counted := make(map[string]bool)
	for _, v := range a.GetVotes() {
		if v.GetVoidReason() == "" && counted[v.GetSubject()] {
			t.Fatalf("%s counts twice", v.GetSubject())
		}
		counted[v.GetSubject()] = counted[v.GetSubject()] || v.GetVoidReason() == ""
		if v.GetSubject() == "bot" || v.GetSubject() == "olga" {
			t.Fatalf("%s has voted on a call of its own", v.GetSubject())
		}
	}
	if name := lifecycle.StateName(a.GetState()); name == "approved" && (a.GetVotesMissing() != 0 || a.GetExecuteBefore() == nil) {
		t.Fatalf("approved as %v", a)
	}
	if held := a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED; held != (a.GetClaim() != nil && a.GetClaim().GetEnded() == nil) {
		t.Fatalf("%v with the claim %v", a.GetState(), a.GetClaim())
	}
	if m := l.r.Moves[len(l.r.Moves)-1]; m.GetTo() != a.GetState() || m.GetVersion() != a.GetVersion() || proto.Equal(m, new(approvalv1.Move)) {
		t.Fatalf("the last move is %v", m)
	}
}
