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
	"github.com/sluice-mesh/sluice/services/internal/attest"
)

const (
	// maxAge is how old a decision may be, and maxAhead how far the clock of the policy
	// role may be before this one's.
	maxAge   = 5 * time.Second
	maxAhead = 2 * time.Second
	// maxUsed is how many decisions are remembered as used, for as long as they could be
	// used again; beyond it none is accepted. It is more than a store takes in that time.
	maxUsed = 1 << 16
)

// verdicts are decisions as the policy role has signed them. They are safe for
// concurrent use.
type verdicts struct {
	verifier  *attest.Verifier
	revisions revisions
	// began is when this service did: what was used before that is not remembered.
	began time.Time

	mu   sync.Mutex
	used map[[sha256.Size]byte]struct{}
	// order are those that are used, in the order in which they were; each is
	// remembered for longer than it could be used again.
	order []usedOne
}

type usedOne struct {
	statement [sha256.Size]byte
	at        time.Time
}

func newVerdicts(policy policyv1.PolicyServiceClient, verifier *attest.Verifier) *verdicts {
	return &verdicts{revisions: revisions{policy: policy}, verifier: verifier, began: time.Now(), used: make(map[[sha256.Size]byte]struct{})}
}

// use is what a decision is brought for.
type use struct {
	// signed is the decision, and said the same as the gateway says it.
	signed *policyv1.SignedDecision
	said   *policyv1.Decision
	// who asks, or claims.
	who *identityv1.Principal
	// identity and definition are those of the server and the tool that is called.
	identity   string
	definition []byte
	// approval and attempt are what it is for: empty and 0 for a question.
	approval string
	attempt  int32
}

// accept returns what policy has decided, and uses it up. Whether that is about the call
// is the caller's to see, by [ofCall]. Errors: [errRefused], [errStale], [errUnseen] and
// [errFull].
func (v *verdicts) accept(u use) (*policyv1.DecisionStatement, error) {
	statement, err := v.verifier.Verify(u.signed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	if what := u.differs(statement); what != "" {
		return nil, fmt.Errorf("%w: it is of another %s", errRefused, what)
	}
	now := time.Now()
	if err := v.fresh(statement, now); err != nil {
		return nil, err
	}
	return statement, v.spend(u.signed.GetStatement(), now)
}

// differs names what of a statement is not as the use has it; empty for nothing.
func (u *use) differs(s *policyv1.DecisionStatement) string {
	switch {
	case s.GetDecision() == nil || !proto.Equal(s.GetDecision(), u.said):
		return "decision"
	case !bytes.Equal(s.GetPrincipalDigest(), attest.Principal(u.who)):
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

// fresh refuses a statement that is not of this moment.
func (v *verdicts) fresh(s *policyv1.DecisionStatement, now time.Time) error {
	current, err := v.revisions.current(s.GetDecision().GetPolicyRevision(), s.GetActivation())
	if err != nil {
		return err
	}
	switch age := now.Sub(s.GetTime().AsTime()); {
	case !current:
		return fmt.Errorf("%w: it is of an older revision", errStale)
	case age > maxAge, age < -maxAhead:
		return fmt.Errorf("%w: by the clock here it is %v old, and may be between %v and %v", errStale, age.Round(time.Millisecond), -maxAhead, maxAge)
	case s.GetTime().AsTime().Before(v.began):
		return fmt.Errorf("%w: it is from before this service began", errStale)
	default:
		return nil
	}
}

// spend remembers a statement, once.
func (v *verdicts) spend(statement []byte, now time.Time) error {
	one := usedOne{sha256.Sum256(statement), now}
	v.mu.Lock()
	defer v.mu.Unlock()
	for len(v.order) > 0 && now.Sub(v.order[0].at) > maxAge+maxAhead {
		delete(v.used, v.order[0].statement)
		v.order = v.order[1:]
	}
	if _, was := v.used[one.statement]; was {
		return fmt.Errorf("%w: it was used", errStale)
	}
	if len(v.order) >= maxUsed {
		return errFull
	}
	v.used[one.statement] = struct{}{}
	v.order = append(v.order, one)
	return nil
}

// ofCall refuses a statement about another call than that of a digest, which
// [binding.Alike] gives.
func ofCall(s *policyv1.DecisionStatement, alike []byte) error {
	if len(alike) == 0 || !bytes.Equal(s.GetCallDigest(), alike) {
		return fmt.Errorf("%w: it is of another call", errRefused)
	}
	return nil
}
