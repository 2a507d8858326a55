// Package attempt asks policy to decide on one attempt at a call, reserves its limits, and records it in the journal.
// Packages pipeline and approvals use it.
package attempt

import (
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// Attempt is one attempt at a call. It is a value: its methods return changed copies.
type Attempt struct {
	*Call

	// Sent is the message that is sent: the received one, or the one that was approved.
	Sent *jsonrpc.Message
	// ID is the id of the decision. An attempt to use an approval has another id, which is also the
	// id of the claim.
	ID string
	// Definition is the digest of the tool's definition as the caller knows it; nil if it is not known.
	Definition []byte
	// Decision is policy's last decision; nil if there is none.
	Decision *policyv1.Decision
	// Lease is the reservation; nil if nothing was reserved.
	Lease *ratelimitv1.Lease
	// Claim is the approval with which the call runs; nil if it runs without one.
	Claim *Claim
	// HeldFor is how long the call was held open.
	HeldFor time.Duration
}

// New returns the first attempt at a call.
func New(call *Call) Attempt { return Attempt{Call: call, Sent: call.Message, ID: NewID()} }

// Claim is an approval by which a call runs. It does not change.
type Claim struct {
	*approvalv1.Approval

	// Attempt is the attempt of the approval that is claimed.
	Attempt int32
	// Votes are the votes that let the call pass. They are known once it is claimed.
	Votes []*approvalv1.Vote
}

// WithClaim returns an attempt to use an approval. It has a new id, and no reservation.
func (a Attempt) WithClaim(claim *approvalv1.Approval) Attempt {
	a.ID, a.Lease, a.Claim = NewID(), nil, &Claim{Approval: claim, Attempt: claim.GetAttempt()}
	return a
}

// WithoutClaim returns the attempt without its approval and the reservation for it.
func (a Attempt) WithoutClaim() Attempt {
	a.Lease, a.Claim = nil, nil
	return a
}

// WithNewID returns the attempt with another id. A call that continues without a claim that it has lost needs it,
// because the records of the claim have the old id.
func (a Attempt) WithNewID() Attempt {
	a.ID = NewID()
	return a
}

// PolicyCall returns the call as policy and approvers judge it, with the digest of the tool's definition.
func (a Attempt) PolicyCall(definition []byte) *policyv1.Call {
	return &policyv1.Call{
		Method: a.Sent.Method, Server: a.Server, Name: a.Name(), Ref: a.Sent.Ref,
		ParamsJson: string(a.Sent.Params.Of(a.Sent.Raw)), DefinitionDigest: definition,
	}
}

// Events returns the function that receives what the server sends before its answer; nil if the caller receives none.
func (a Attempt) Events() func(message []byte) {
	if a.Reply == nil {
		return nil
	}
	return a.Reply.Event
}

// Name returns what the request names, which is what policy matches: its URI or its name.
func (a Attempt) Name() string {
	if a.Sent.URI != "" {
		return a.Sent.URI
	}
	return a.Sent.Name
}

// Place returns where the call is sent, for its span.
func (a Attempt) Place() spans.Place {
	return spans.Place{Server: a.Server, Transport: spans.Transport(a.Transport), Version: a.Version, Session: a.Principal.GetSession()}
}
