// Package attempt is one try at a call, and what is done with it at policy, at the limiter
// and in the journal. It is shared by the calls that pass at once and by those that people
// are asked about.
package attempt

import (
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// Attempt is one try at a call, by value: what follows from one is another one.
type Attempt struct {
	*Call

	// Sent is what goes out: the message that came, or the one that people approved.
	Sent *gate.Message
	// ID is that of the decision. A try to use an approval has its own, which is the
	// claim's.
	ID string
	// Definition is the digest of the tool's definition, as the caller knows it; nil where
	// nobody does.
	Definition []byte
	// Decision is what policy said last; nil where it has said nothing.
	Decision *policyv1.Decision
	// Lease is what was reserved; nil where nothing was.
	Lease *ratelimitv1.Lease
	// Claim is the approval that the call goes by; nil where it goes by none.
	Claim *Claim
	// HeldFor is for how long the call was held open for people.
	HeldFor time.Duration
}

// New is the first attempt at a call.
func New(call *Call) Attempt { return Attempt{Call: call, Sent: call.Message, ID: NewID()} }

// Claim is an approval that a call goes by. It does not change.
type Claim struct {
	*approvalv1.Approval

	// Attempt is the approval's attempt that the claim is of.
	Attempt int32
	// Votes are those that let the call pass, known once it is claimed.
	Votes []*approvalv1.Vote
}

// Claims is a as it is about to use an approval: under a name of its own, with nothing
// reserved yet.
func (a Attempt) Claims(by *approvalv1.Approval) Attempt {
	a.ID, a.Lease, a.Claim = NewID(), nil, &Claim{Approval: by, Attempt: by.GetAttempt()}
	return a
}

// Free is a without an approval and without what was reserved for it.
func (a Attempt) Free() Attempt {
	a.Lease, a.Claim = nil, nil
	return a
}

// WithNewID returns the attempt under another id. A call that goes on without a claim that it has lost needs it, because
// the records of the claim have the old one.
func (a Attempt) WithNewID() Attempt {
	a.ID = NewID()
	return a
}

// Bound is the call as policy and people judge it.
func (a Attempt) Bound(definition []byte) *policyv1.Call {
	return &policyv1.Call{
		Method: a.Sent.Method, Server: a.Server, Name: a.Name(), Ref: a.Sent.Ref,
		ParamsJson: string(a.Sent.Params.Of(a.Sent.Raw)), DefinitionDigest: definition,
	}
}

// Events takes what the upstream sends before its answer; nil where nobody does.
func (a Attempt) Events() func(message []byte) {
	if a.Reply == nil {
		return nil
	}
	return a.Reply.Event
}

// Name is what the request names, which is what policy matches.
func (a Attempt) Name() string {
	if a.Sent.URI != "" {
		return a.Sent.URI
	}
	return a.Sent.Name
}

// Place is where the call goes, for its span.
func (a Attempt) Place() spans.Place {
	return spans.Place{Server: a.Server, Transport: spans.Transport(a.Transport), Version: a.Version, Session: a.Principal.GetSession()}
}
