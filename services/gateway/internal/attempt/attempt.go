// Package attempt makes one attempt at a call. It requests a decision from the policy service, reserves limits, and
// writes records to the journal. Packages pipeline and approvals use it.
package attempt

import (
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/redaction"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Attempt is one attempt at a call. It is a value type: methods that change it return a changed copy.
type Attempt struct {
	*Call

	// Sent is the message to send. It is the message that the client sent or, after an approval, the message that was
	// approved.
	Sent *jsonrpc.Message
	// ID is the id of the decision. When the attempt claims an approval, it gets a new id, which is also the id of the
	// claim.
	ID string
	// Definition is the digest of the called tool's definition. The policy service evaluates the call with this digest.
	// It is nil if the definition is not known.
	Definition []byte
	// Decision is the last decision of the policy service, or nil if there is no decision.
	Decision *policyv1.Decision
	// Validity tells how long the decision allows the call to start.
	Validity decisioncache.Validity
	// Lease is the reservation of the call's limits, or nil if nothing was reserved.
	Lease *ratelimitv1.Lease
	// ObservedLease is the reservation of the limits that are only recorded and not enforced (mode: observe), or nil if
	// no such limits were reserved. ObservedRefusal is the refusal that the call would have received because of these
	// limits, or nil.
	ObservedLease   *ratelimitv1.Lease
	ObservedRefusal *refusal.Refusal
	// Claim is the approval under which the call runs, or nil if the call runs without an approval.
	Claim *Claim
	// HeldFor is how long the call was held open.
	HeldFor time.Duration
	// Redactor applies the decision's redactions to the messages of the call. It is nil if the decision contains none.
	Redactor *redaction.Redactor
	// Recorded describes the stored copy of the arguments. It is nil if no copy was stored.
	Recorded *journal.Recorded
}

// New returns the first attempt at a call.
func New(call *Call) Attempt { return Attempt{Call: call, Sent: call.Message, ID: NewID()} }

// Claim is the approval under which a call runs. It is immutable.
type Claim struct {
	*approvalv1.Approval

	// Attempt is the number of the approval's attempt for which the claim was made.
	Attempt int32
	// Votes are the votes that approved the call. The field is empty until the approval is claimed.
	Votes []*approvalv1.Vote
}

// WithClaim returns a copy of the attempt that tries to claim an approval. The copy has a new id and no reservation.
func (a Attempt) WithClaim(claim *approvalv1.Approval) Attempt {
	a.ID, a.Lease, a.Claim = NewID(), nil, &Claim{Approval: claim, Attempt: claim.GetAttempt()}
	return a
}

// WithoutClaim returns a copy of the attempt without the approval and without the limits that were reserved for it.
func (a Attempt) WithoutClaim() Attempt {
	a.Lease, a.Claim = nil, nil
	return a
}

// WithNewID returns a copy of the attempt with a new id. A call that continues after its claim was not made needs a new
// id, because the journal already contains records of the claim with the old id.
func (a Attempt) WithNewID() Attempt {
	a.ID = NewID()
	return a
}

// PolicyCall returns the call with the given definition digest, in the form that the policy service evaluates and
// approvers see.
func (a Attempt) PolicyCall(definition []byte) *policyv1.Call {
	return &policyv1.Call{
		Method: a.Sent.Method, Server: a.Server, Name: a.Name(), Ref: a.Sent.Ref,
		ParamsJson: string(a.Sent.Params.Of(a.Sent.Raw)), DefinitionDigest: definition,
	}
}

// Events returns the function that receives the messages that the server sends before its answer. It returns nil if the
// caller does not accept such messages.
func (a Attempt) Events() func(message []byte) {
	if a.Reply == nil {
		return nil
	}
	return a.Reply.Event
}

// Name returns the name or URI in the request, which policy rules match.
func (a Attempt) Name() string {
	if a.Sent.URI != "" {
		return a.Sent.URI
	}
	return a.Sent.Name
}

// Place returns the attributes of the call's server and session for the call's span.
func (a Attempt) Place() spans.Place {
	return spans.Place{Server: a.Server, Transport: spans.Transport(a.Transport), Version: a.Version, Session: a.Principal.GetSession()}
}
