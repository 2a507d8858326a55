package approval

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
)

const (
	// maxAge is the maximum age of a decision, and maxAhead the maximum time by which the clock of the policy service
	// may be ahead of the local clock.
	maxAge   = 5 * time.Second
	maxAhead = 2 * time.Second
	// maxUsed is the maximum number of used decisions that are remembered. A used decision is remembered for
	// maxAge+maxAhead. At the maximum, no decision is accepted. The maximum is more than a store handles in that time.
	maxUsed = 1 << 16
)

// verdicts checks decisions that the policy service signed, and accepts each only once. It is safe for concurrent use.
type verdicts struct {
	verifier  *signeddecision.Verifier
	revisions revisions
	// began is when this service started. A decision from before the start is refused, because the service does not know
	// whether it was used.
	began time.Time

	mu   sync.Mutex
	used map[[sha256.Size]byte]struct{}
	// order lists the used decisions by the time of their use, oldest first.
	order []usedOne
}

// usedOne is a used decision: the digest of its statement, and when it was used.
type usedOne struct {
	statement [sha256.Size]byte
	at        time.Time
}

func newVerdicts(policy policyv1.PolicyServiceClient, verifier *signeddecision.Verifier) *verdicts {
	return &verdicts{revisions: revisions{policy: policy}, verifier: verifier, began: time.Now(), used: make(map[[sha256.Size]byte]struct{})}
}

// use describes the request that contains a decision: a request for an approval, a vote at the agent or a claim.
type use struct {
	// signed is the signed decision, and said is the unsigned copy in the same request.
	signed *policyv1.SignedDecision
	said   *policyv1.Decision
	// who is the principal that requests or claims the approval.
	who *identityv1.Principal
	// identity is the identity of the called server, and definition the digest of the called tool's definition.
	identity   string
	definition []byte
	// approval is the approval's id in a claim or in a vote at the agent; empty for a new request. attempt is the attempt
	// of a claim; 0 for other requests.
	approval string
	attempt  int32
}

// accept returns the statement that policy signed, and marks it as used. The caller must check with [ofCall] that the
// statement is about the call. Errors: [errRefused], [errStale], [errUnseen] and [errFull].
func (v *verdicts) accept(u use) (*policyv1.DecisionStatement, error) {
	statement, err := v.verifier.Verify(u.signed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	if what := u.differs(statement); what != "" {
		return nil, fmt.Errorf("%w: it is about another %s", errRefused, what)
	}
	now := time.Now()
	if err := v.fresh(statement, now); err != nil {
		return nil, err
	}
	return statement, v.spend(u.signed.GetStatement(), now)
}

// differs returns the name of the part in which a statement differs from the use, or "" if they agree.
func (u *use) differs(s *policyv1.DecisionStatement) string {
	switch {
	case s.GetDecision() == nil || !proto.Equal(s.GetDecision(), u.said):
		return "decision"
	case !bytes.Equal(s.GetPrincipalDigest(), signeddecision.PrincipalDigest(u.who)):
		return "principal"
	case s.GetServerIdentity() != u.identity:
		return "server"
	case !bytes.Equal(s.GetDefinitionDigest(), u.definition):
		return "definition"
	case s.GetApprovalId() != u.approval || s.GetAttempt() != u.attempt:
		return "approval"
	default:
		return ""
	}
}

// fresh returns errStale unless the statement is current: it is of the active revision, it is not too old, and it was
// made after this service started.
func (v *verdicts) fresh(s *policyv1.DecisionStatement, now time.Time) error {
	current, err := v.revisions.current(s.GetDecision().GetPolicyRevision(), s.GetActivation())
	if err != nil {
		return err
	}
	switch age := now.Sub(s.GetTime().AsTime()); {
	case !current:
		return fmt.Errorf("%w: it is of an older revision", errStale)
	case age > maxAge, age < -maxAhead:
		return fmt.Errorf("%w: by the local clock its age is %v, which must be between %v and %v", errStale, age.Round(time.Millisecond), -maxAhead, maxAge)
	case s.GetTime().AsTime().Before(v.began):
		return fmt.Errorf("%w: it is from before this service started", errStale)
	default:
		return nil
	}
}

// spend marks a statement as used. It returns [errStale] if the statement was used already, or [errFull].
func (v *verdicts) spend(statement []byte, now time.Time) error {
	one := usedOne{sha256.Sum256(statement), now}
	v.mu.Lock()
	defer v.mu.Unlock()
	for len(v.order) > 0 && now.Sub(v.order[0].at) > maxAge+maxAhead {
		delete(v.used, v.order[0].statement)
		v.order = v.order[1:]
	}
	if _, was := v.used[one.statement]; was {
		return fmt.Errorf("%w: it was used already", errStale)
	}
	if len(v.order) >= maxUsed {
		return errFull
	}
	v.used[one.statement] = struct{}{}
	v.order = append(v.order, one)
	return nil
}

// ofCall returns [errRefused] unless the statement is about the call whose [binding.DigestIgnoringDefinition] digest is alike.
func ofCall(s *policyv1.DecisionStatement, alike []byte) error {
	if len(alike) == 0 || !bytes.Equal(s.GetCallDigest(), alike) {
		return fmt.Errorf("%w: it is about another call", errRefused)
	}
	return nil
}
