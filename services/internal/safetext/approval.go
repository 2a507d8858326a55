package safetext

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Approval is the machine-readable form of an approval. It contains the requested call and the state of the approval,
// but no argument values.
type Approval struct {
	ID            string    `json:"id"`
	State         string    `json:"state"`
	Server        string    `json:"server"`
	Tool          string    `json:"tool"`
	Method        string    `json:"method"`
	Subject       string    `json:"subject"`
	Agent         string    `json:"agent,omitzero"`
	Owner         string    `json:"owner,omitzero"`
	Person        string    `json:"person,omitzero"`
	Chain         []string  `json:"chain,omitempty"`
	Rule          string    `json:"rule,omitzero"`
	Message       string    `json:"message,omitzero"`
	Reason        string    `json:"reason,omitzero"`
	Approvers     []string  `json:"approvers,omitempty"`
	Quorum        int32     `json:"quorum"`
	VotesMissing  int32     `json:"votesMissing"`
	Votes         []Vote    `json:"votes,omitempty"`
	Requested     time.Time `json:"requested"`
	DecideBefore  time.Time `json:"decideBefore,omitzero"`
	ExecuteBefore time.Time `json:"executeBefore,omitzero"`
	Ended         time.Time `json:"ended,omitzero"`
	DeniedUntil   time.Time `json:"deniedUntil,omitzero"`
	DecisionID    string    `json:"decisionId"`
	GrantedBy     string    `json:"grantedBy,omitzero"`
	SelfConfirm   bool      `json:"selfConfirm,omitzero"`
	Grant         *Grant    `json:"grant,omitzero"`
	ApproveWith   *StepUp   `json:"approveWith,omitzero"`
}

// StepUp describes how the people who approve must have authenticated.
type StepUp struct {
	// MaxAge is the maximum time since the authentication, in seconds. It is 0 if any time is accepted.
	MaxAge float64 `json:"maxAgeSeconds,omitzero"`
	// ACR contains the accepted authentication context classes. It is empty if any class is accepted.
	ACR []string `json:"acr,omitempty"`
}

// Grant describes the grant of an approval, which covers several calls.
type Grant struct {
	Calls int64 `json:"calls"`
	Used  int64 `json:"used"`
	// Within is how long the grant is valid after people have approved the call, in seconds.
	Within  float64   `json:"withinSeconds"`
	Expires time.Time `json:"expires,omitzero"`
	// Where contains the conditions that a call must satisfy, in CEL. It is empty if there are none.
	Where []string `json:"where,omitempty"`
}

// Vote is one person's vote on an approval.
type Vote struct {
	Subject string    `json:"subject"`
	Verdict string    `json:"verdict"`
	Time    time.Time `json:"time"`
	Comment string    `json:"comment,omitzero"`
	Channel string    `json:"channel,omitzero"`
	Void    string    `json:"void,omitzero"`
	// AuthTime and ACR say how the person had authenticated, if this was required.
	AuthTime time.Time `json:"authTime,omitzero"`
	ACR      string    `json:"acr,omitzero"`
}

// ApprovalOf returns the machine-readable form of an approval.
func ApprovalOf(a *approvalv1.Approval) Approval {
	out := Approval{
		ID: a.GetId(), State: enum.Name(a.GetState()), Server: a.GetServer(), Tool: a.GetName(), Method: a.GetMethod(),
		Subject: a.GetRequester().GetSubject(), Agent: a.GetRequester().GetAgent(), Owner: a.GetRequester().GetOwner(), Person: principal.ConnectionsOf(a.GetRequester()).Subject,
		Message: a.GetMessage(), Reason: a.GetReason(), Approvers: a.GetTerms().GetApprovers(), Quorum: a.GetTerms().GetQuorum(),
		VotesMissing: a.GetVotesMissing(), Requested: timeOf(a.GetRequested()), DecideBefore: timeOf(a.GetDecideBefore()),
		ExecuteBefore: timeOf(a.GetExecuteBefore()), Ended: timeOf(a.GetEnded()), DeniedUntil: timeOf(a.GetDeniedUntil()), DecisionID: a.GetDecisionId(), GrantedBy: a.GetGrantedBy(),
		SelfConfirm: a.GetTerms().GetSelfConfirm(),
	}
	if g := a.GetGrant(); g != nil {
		out.Grant = &Grant{
			Calls: g.GetCalls(), Used: g.GetUsed(), Within: a.GetTerms().GetGrant().GetWithin().AsDuration().Seconds(), Expires: timeOf(g.GetExpires()),
			Where: a.GetTerms().GetGrant().GetWhere(),
		}
	}
	if s := a.GetTerms().GetApproveWith(); s != nil {
		out.ApproveWith = &StepUp{MaxAge: s.GetMaxAge().AsDuration().Seconds(), ACR: s.GetAcrValues()}
	}
	for _, p := range a.GetRequester().GetChain() {
		out.Chain = append(out.Chain, p.GetSubject())
	}
	if r := a.GetRule(); r != nil {
		out.Rule = r.GetDocument() + "/" + r.GetRule()
	}
	for _, v := range a.GetVotes() {
		out.Votes = append(out.Votes, Vote{
			Subject: v.GetSubject(), Verdict: enum.Name(v.GetVerdict()),
			Time: timeOf(v.GetTime()), Comment: v.GetComment(), Void: v.GetVoidReason(),
			Channel: enum.NameOrEmpty(v.GetChannel()), AuthTime: timeOf(v.GetAuthTime()), ACR: v.GetAcr(),
		})
	}
	return out
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
