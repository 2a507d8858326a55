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

// Question is a call that a person must decide on.
type Question struct {
	// ID is the approval's, DecisionID that of the decision that asks, and Digest the
	// call's.
	ID, DecisionID string
	Digest         []byte
	// Alike and Bare are as in [Record].
	Alike, Bare []byte
	// TraceParent names the trace of who asks; empty for none.
	TraceParent string
	// Requester asked.
	Requester *identityv1.Principal
	// Call is what is kept of the call.
	Call *approvalv1.BoundCall
	// Decision asks; its terms are present.
	Decision *policyv1.Decision
	// Times are those of the installation.
	Times Times
}

// Open makes a record that waits for people.
func Open(q Question, now time.Time) *Record {
	r := &Record{
		Approval: &approvalv1.Approval{
			Id: q.ID, Attempt: 1, Digest: q.Digest, Requester: requester(q.Requester), DecisionId: q.DecisionID,
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
	r.judged(q.Decision, q.Times)
	r.move(pending, now, cause{actor: q.Requester.GetSubject(), reason: "asked for"})
	r.Approval.Reason = ""
	return r
}

// requester is who asked, without what may differ between two sendings.
func requester(p *identityv1.Principal) *identityv1.Principal {
	out := proto.CloneOf(p)
	for _, who := range append([]*identityv1.Principal{out}, out.GetChain()...) {
		who.Session, who.Run, who.TokenId, who.TokenCreated = "", "", "", nil
	}
	return out
}

// judged takes over what a decision says of the approval.
func (r *Record) judged(d *policyv1.Decision, times Times) {
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
	a.VotesMissing = r.missing()
	a.Grant = grantOf(terms)
}

// grantOf is what terms grant once people agree to them; nil for one call alone.
func grantOf(terms *policyv1.ApprovalTerms) *approvalv1.GrantRecord {
	g := terms.GetGrant()
	if g == nil {
		return nil
	}
	return &approvalv1.GrantRecord{Calls: g.GetCalls(), Scope: g.GetScope()}
}

// Answer takes the word of whoever sits at the agent, who was shown the record as a
// decision asked: its terms say self_confirm, and its quorum is 1. A word that comes
// too late, or when others have to decide by now, confirms nothing; what was declined
// ends while it can, and one that was denied stays so for the cool-down.
func (r *Record) Answer(verdict approvalv1.Verdict, d *policyv1.Decision, coolDown time.Duration, now time.Time) error {
	state, asker := r.Approval.GetState(), r.Approval.GetRequester().GetSubject()
	declines := verdict == approvalv1.Verdict_VERDICT_DENY
	if state != pending || !r.sameTerms(d) {
		if declines && (state == pending || state == approved) {
			return r.Cancel(asker, declinedThere, now)
		}
		return nil
	}
	vote := &approvalv1.Vote{
		Subject: asker, Verdict: verdict, Time: timestamppb.New(now), Channel: approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION,
	}
	r.Approval.Votes = append(r.Approval.Votes, vote)
	if declines {
		r.deny(vote, declinedThere, coolDown, now)
		return nil
	}
	r.count(now, cause{actor: asker, reason: "confirmed at the agent", vote: vote})
	return nil
}

// declinedThere is why a call ended that whoever sits at the agent does not want.
const declinedThere = "declined at the agent"

// Cover approves a record because the grant of another covers its call.
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

// Ask brings an approval that a call already has up to what policy says by now:
// on other terms, or by another rule, people begin again. It reports whether they do.
func (r *Record) Ask(d *policyv1.Decision, times Times, now time.Time) bool {
	if s := r.Approval.GetState(); s != pending && s != approved || r.sameTerms(d) {
		return false
	}
	r.again(d, times, now)
	return true
}

// again makes people begin again on a decision's terms.
func (r *Record) again(d *policyv1.Decision, times Times, now time.Time) {
	r.judged(d, times)
	r.Approval.GrantedBy = ""
	r.move(pending, now, cause{reason: "the rule or its terms have changed"})
}

// sameTerms reports whether a decision asks as the one that was voted on.
func (r *Record) sameTerms(d *policyv1.Decision) bool {
	was, is := r.Approval.GetTerms(), d.GetApproval()
	return bytes.Equal(r.Approval.GetRuleDigest(), d.GetRuleDigest()) &&
		slices.Equal(set(was.GetApprovers()), set(is.GetApprovers())) &&
		was.GetQuorum() == is.GetQuorum() && was.GetSelfConfirm() == is.GetSelfConfirm() &&
		proto.Equal(was.GetDecideWithin(), is.GetDecideWithin()) && proto.Equal(was.GetExecuteWithin(), is.GetExecuteWithin()) &&
		proto.Equal(was.GetGrant(), is.GetGrant())
}

func set(words []string) []string { return slices.Compact(slices.Sorted(slices.Values(words))) }

// Covers reports whether the record's grant covers one more call, of which a decision
// asks on the very terms that people agreed to.
func (r *Record) Covers(d *policyv1.Decision, now time.Time) bool {
	return r.LiveGrant(now) && r.sameTerms(d)
}

// LiveGrant reports whether the record's grant covers one more call.
func (r *Record) LiveGrant(now time.Time) bool {
	g := r.Approval.GetGrant()
	return g.GetExpires() != nil && now.Before(g.GetExpires().AsTime()) && g.GetUsed() < g.GetCalls()
}
