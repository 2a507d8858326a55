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
	// maxAge is the maximum age of a decision. maxAhead is how far the policy service's clock may be ahead of the local
	// clock.
	maxAge   = 5 * time.Second
	maxAhead = 2 * time.Second
	// maxUsed is the maximum number of used decisions that are remembered. Each decision is remembered for
	// maxAge+maxAhead. While maxUsed decisions are remembered, all other decisions are refused. A store can't process so
	// many decisions in maxAge+maxAhead.
	maxUsed = 1 << 16
)

// decisionVerifier verifies decisions that the policy service signed. It accepts each decision only once. It is safe
// for concurrent use.
type decisionVerifier struct {
	verifier  *signeddecision.Verifier
	revisions revisions
	// started is the start time of this service. Decisions that were signed earlier are refused, because this process
	// can't know whether they were used.
	started time.Time

	mu   sync.Mutex
	used map[[sha256.Size]byte]struct{}
	// order lists the used decisions, sorted by the time of their use, oldest first.
	order []usedDecision
}

// usedDecision is the digest of a used decision's statement, and the time of its use.
type usedDecision struct {
	statement [sha256.Size]byte
	at        time.Time
}

func newDecisionVerifier(policy policyv1.PolicyServiceClient, verifier *signeddecision.Verifier) *decisionVerifier {
	return &decisionVerifier{revisions: revisions{policy: policy}, verifier: verifier, started: time.Now(), used: make(map[[sha256.Size]byte]struct{})}
}

// decisionUse describes the request that contains a decision. The request is a request for an approval, a vote by the
// person who uses the agent, or a claim.
type decisionUse struct {
	// signed is the signed decision, and unsigned is the unsigned copy in the same request.
	signed    *policyv1.SignedDecision
	unsigned  *policyv1.Decision
	principal *identityv1.Principal
	// identity is the identity of the called server. definition is the digest of the called tool's definition.
	identity   string
	definition []byte
	// approval is the id of the approval in a claim or in a vote by the person who uses the agent. It is empty in a
	// request for an approval. attempt is the number of the attempt in a claim. It is 0 in other requests.
	approval string
	attempt  int32
}

// accept returns the statement that the policy service signed, and marks the statement as used. The caller must then
// check with [checkCallDigest] that the statement is about the call. The error is [errDecisionRefused],
// [errDecisionStale], [errNoRevision] or [errTooManyUsed].
func (v *decisionVerifier) accept(u decisionUse) (*policyv1.DecisionStatement, error) {
	statement, err := v.verifier.Verify(u.signed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDecisionRefused, err)
	}
	if what := u.mismatch(statement); what != "" {
		return nil, fmt.Errorf("%w: it is about another %s", errDecisionRefused, what)
	}
	now := time.Now()
	if err := v.checkFreshness(statement, now); err != nil {
		return nil, err
	}
	return statement, v.markUsed(u.signed.GetStatement(), now)
}

// mismatch returns the name of a field in which a statement differs from the request, or "" if all fields match.
func (u *decisionUse) mismatch(s *policyv1.DecisionStatement) string {
	switch {
	case s.GetDecision() == nil || !proto.Equal(s.GetDecision(), u.unsigned):
		return "decision"
	case !bytes.Equal(s.GetPrincipalDigest(), signeddecision.PrincipalDigest(u.principal)):
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

// checkFreshness returns [errDecisionStale] if the statement was not signed under the active revision, is older than
// maxAge, or was signed before this service started.
func (v *decisionVerifier) checkFreshness(s *policyv1.DecisionStatement, now time.Time) error {
	current, err := v.revisions.isCurrent(s.GetDecision().GetPolicyRevision(), s.GetActivation())
	if err != nil {
		return err
	}
	switch age := now.Sub(s.GetTime().AsTime()); {
	case !current:
		return fmt.Errorf("%w: it is of an older revision", errDecisionStale)
	case age > maxAge, age < -maxAhead:
		return fmt.Errorf("%w: by the local clock its age is %v, which must be between %v and %v", errDecisionStale, age.Round(time.Millisecond), -maxAhead, maxAge)
	case s.GetTime().AsTime().Before(v.started):
		return fmt.Errorf("%w: it is from before this service started", errDecisionStale)
	default:
		return nil
	}
}

// markUsed marks a statement as used. It returns [errDecisionStale] if the statement is already marked, and
// [errTooManyUsed] if maxUsed statements are remembered.
func (v *decisionVerifier) markUsed(statement []byte, now time.Time) error {
	one := usedDecision{sha256.Sum256(statement), now}
	v.mu.Lock()
	defer v.mu.Unlock()
	for len(v.order) > 0 && now.Sub(v.order[0].at) > maxAge+maxAhead {
		delete(v.used, v.order[0].statement)
		v.order = v.order[1:]
	}
	if _, was := v.used[one.statement]; was {
		return fmt.Errorf("%w: it was used already", errDecisionStale)
	}
	if len(v.order) >= maxUsed {
		return errTooManyUsed
	}
	v.used[one.statement] = struct{}{}
	v.order = append(v.order, one)
	return nil
}

// checkCallDigest returns [errDecisionRefused] if the statement is not about the call with the given digest. The digest
// is a result of [binding.DigestIgnoringDefinition].
func checkCallDigest(s *policyv1.DecisionStatement, alike []byte) error {
	if len(alike) == 0 || !bytes.Equal(s.GetCallDigest(), alike) {
		return fmt.Errorf("%w: it is about another call", errDecisionRefused)
	}
	return nil
}
