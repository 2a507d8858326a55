package lifecycle

import (
	"bytes"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/publicname"
)

// OpenRequest is a call that needs a person's decision.
type OpenRequest struct {
	// ID is the approval's id. DecisionID identifies the decision that requires the approval. Digest is the digest of
	// the call.
	ID, DecisionID string
	Digest         []byte
	// Alike and Bare have the same meaning as in [Record].
	Alike, Bare []byte
	// TraceParent is the `traceparent` of the request. It may be empty.
	TraceParent string
	Requester   *identityv1.Principal
	// Call is the call to store.
	Call *approvalv1.BoundCall
	// Decision is the policy decision that requires the approval. Its terms must be set.
	Decision *policyv1.Decision
	// Times are the configured times. The terms of the decision may override them.
	Times Times
}

// Open returns a new pending record.
func Open(q OpenRequest, now time.Time) *Record {
	r := &Record{
		Approval: &approvalv1.Approval{
			Id: q.ID, Attempt: 1, Digest: q.Digest, Requester: stableRequester(q.Requester), DecisionId: q.DecisionID,
			Method: q.Call.GetCall().GetMethod(), Server: q.Call.GetCall().GetServer(), Name: publicname.Of(q.Call.GetCall().GetName()),
			ServerIdentity: q.Call.GetServerIdentity(), DefinitionDigest: q.Call.GetCall().GetDefinitionDigest(),
			ParamsBytes: int64(len(q.Call.GetCall().GetParamsJson())), Requested: timestamppb.New(now),
			TraceParent: q.TraceParent,
		},
		Call: q.Call, Alike: q.Alike, Bare: q.Bare,
	}
	if r.Approval.GetMethod() == "" {
		r.Approval.Method = "tools/call"
	}
	r.applyDecision(q.Decision, q.Times)
	r.move(pending, now, cause{actor: q.Requester.GetSubject(), reason: "requested"})
	r.Approval.Reason = ""
	return r
}

// stableRequester returns a copy of p without the fields that may differ between two requests of the same caller.
func stableRequester(p *identityv1.Principal) *identityv1.Principal {
	out := proto.CloneOf(p)
	for _, who := range append([]*identityv1.Principal{out}, out.GetChain()...) {
		who.Session, who.Run, who.TokenId, who.TokenCreated = "", "", "", nil
		who.AuthTime, who.Acr = nil, ""
	}
	return out
}

// applyDecision copies the rule, the terms and the times of a decision into the record, and removes all votes.
func (r *Record) applyDecision(d *policyv1.Decision, times Times) {
	a, terms := r.Approval, d.GetApproval()
	r.Decision = d
	r.Times = times
	if t := terms.GetDecideWithin(); t != nil {
		r.Times.Decide = t.AsDuration()
	}
	if t := terms.GetExecuteWithin(); t != nil {
		r.Times.Execute = t.AsDuration()
	}
	a.Rule, a.RuleDigest, a.PolicyRevision, a.Message, a.Terms = d.GetRule(), d.GetRuleDigest(), d.GetPolicyRevision(), d.GetMessage(), terms
	a.Votes = nil
	a.VotesMissing = r.missingVotes()
	a.Grant = newGrant(terms)
}

// newGrant returns the grant that an approval with these terms creates, or nil if the terms allow only one call.
func newGrant(terms *policyv1.ApprovalTerms) *approvalv1.GrantRecord {
	g := terms.GetGrant()
	if g == nil {
		return nil
	}
	return &approvalv1.GrantRecord{Calls: g.GetCalls(), Scope: g.GetScope()}
}

// RecordSelfVote records the vote of the person who uses the agent. d is the decision whose terms the agent showed to
// the person. [AllowsSelfVote] must return true for these terms. If the record is no longer pending or has other terms,
// a vote to approve changes nothing, and a vote to deny cancels the record if it is pending or approved. A denied call
// stays denied during the cool-down.
func (r *Record) RecordSelfVote(verdict approvalv1.Verdict, d *policyv1.Decision, coolDown time.Duration, now time.Time) error {
	state, asker := r.Approval.GetState(), r.Approval.GetRequester().GetSubject()
	declines := verdict == approvalv1.Verdict_VERDICT_DENY
	if state != pending || !r.sameTerms(d) {
		if declines && (state == pending || state == approved) {
			return r.Cancel(asker, declinedAtAgent, now)
		}
		return nil
	}
	vote := &approvalv1.Vote{
		Subject: asker, Verdict: verdict, Time: timestamppb.New(now), Channel: approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION,
	}
	r.Approval.Votes = append(r.Approval.Votes, vote)
	if declines {
		r.deny(vote, declinedAtAgent, coolDown, now)
		return nil
	}
	r.countVotes(now, cause{actor: asker, reason: "confirmed at the agent", vote: vote})
	return nil
}

// declinedAtAgent is the reason that is recorded if the person who uses the agent declines the call.
const declinedAtAgent = "declined at the agent"

// Cover approves r, because the grant of the other record covers r's call.
func (r *Record) Cover(by *Record, now time.Time) {
	r.Approval.GrantedBy = by.Approval.GetId()
	r.Approval.Grant = nil
	r.Approval.VotesMissing = 0
	until := now.Add(r.Times.Execute)
	if end := by.Approval.GetGrant().GetExpires().AsTime(); end.Before(until) {
		until = end
	}
	r.approve(until, now, cause{reason: "covered by the grant of approval " + by.Approval.GetId()})
}

// UpdateDecision updates the approval of a call to d, the current decision of the policy service. If the rule or its
// terms have changed, it removes all votes and asks approvers again. It reports whether it asked approvers again.
func (r *Record) UpdateDecision(d *policyv1.Decision, times Times, now time.Time) bool {
	if s := r.Approval.GetState(); s != pending && s != approved || r.sameTerms(d) {
		return false
	}
	r.askAgain(d, times, now)
	return true
}

// askAgain asks approvers again, with the terms of the given decision.
func (r *Record) askAgain(d *policyv1.Decision, times Times, now time.Time) {
	r.applyDecision(d, times)
	r.Approval.GrantedBy = ""
	r.move(pending, now, cause{reason: "the rule or its terms have changed"})
}

func (r *Record) sameTerms(d *policyv1.Decision) bool {
	was, is := r.Approval.GetTerms(), d.GetApproval()
	return bytes.Equal(r.Approval.GetRuleDigest(), d.GetRuleDigest()) &&
		slices.Equal(sortedSet(was.GetApprovers()), sortedSet(is.GetApprovers())) &&
		was.GetQuorum() == is.GetQuorum() && was.GetSelfConfirm() == is.GetSelfConfirm() &&
		proto.Equal(was.GetDecideWithin(), is.GetDecideWithin()) && proto.Equal(was.GetExecuteWithin(), is.GetExecuteWithin()) &&
		proto.Equal(was.GetGrant(), is.GetGrant()) && proto.Equal(was.GetApproveWith(), is.GetApproveWith())
}

// AllowsSelfVote reports whether the terms allow the person who uses the agent to approve or deny the call. The mesh
// does not know how that person has authenticated, so terms with approve_with do not allow it.
func AllowsSelfVote(terms *policyv1.ApprovalTerms) bool {
	return terms.GetSelfConfirm() && terms.GetQuorum() == 1 && terms.GetApproveWith() == nil
}

func sortedSet(words []string) []string { return slices.Compact(slices.Sorted(slices.Values(words))) }

// Covers reports whether the record's grant covers one more call. d is the decision of the policy service on that call.
// Covers returns false if the rule or the approval terms of d differ from the record's rule or terms.
func (r *Record) Covers(d *policyv1.Decision, now time.Time) bool {
	return r.HasLiveGrant(now) && r.sameTerms(d)
}

// HasLiveGrant reports whether the record has a grant that has not expired and has calls left.
func (r *Record) HasLiveGrant(now time.Time) bool {
	g := r.Approval.GetGrant()
	return g.GetExpires() != nil && now.Before(g.GetExpires().AsTime()) && g.GetUsed() < g.GetCalls()
}
