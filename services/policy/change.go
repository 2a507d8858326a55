package policy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

const (
	// An approval of a change is bound to a call with the server changeServer and the method changeMethod. No real server
	// has this method.
	changeServer, changeMethod = "sluice-policy", "policy/apply"
	// changeFormat is the version of the format from which change ids are computed.
	changeFormat = "sluice-policy-change-1"
	// changeHolder is the name under which this service claims approvals. changeLease is how long a claim is valid.
	changeHolder, changeLease = "policy", 30 * time.Second
	// approvalTimeout limits the duration of a request to the approval service. cleanupTimeout limits the duration of the
	// requests that follow the activation of documents. The activation remains valid if those requests fail.
	approvalTimeout, cleanupTimeout = 5 * time.Second, 2 * time.Second
	// maxSignatures limits how often a decision is signed for one request. A new signature is necessary if the approval
	// service has already seen a newer revision.
	maxSignatures = 3
)

// policyChange is a request to replace the active documents, which needs an approval.
type policyChange struct {
	service  *Service
	author   *identityv1.Principal
	request  *policyv1.ApplyDocumentsRequest
	compiled *compiledDocuments

	// base is the active revision, which the change replaces.
	base store.Revision
	// id identifies the change, and params describes it to approvers as JSON.
	id     string
	params string
}

// changeApproval is an approval that was claimed for a change.
type changeApproval struct {
	id string
	// replaces is the number of the activation that the change replaces.
	replaces int64
	// people is a JSON array with the people who approved the change.
	people string
}

// changeTerms returns the approval terms for changes to the documents, such as the quorum. It returns nil if changes
// need no approval.
func changeTerms(c *config.PolicyChanges) *policyv1.ApprovalTerms {
	if c == nil {
		return nil
	}
	decide, execute := c.Times()
	return &policyv1.ApprovalTerms{
		Approvers: c.Approvers, Quorum: int32(c.People()), DecideWithin: durationpb.New(decide), ExecuteWithin: durationpb.New(execute),
	}
}

// authorOf returns the principal for whom the approval of the caller's change is requested, without session and run.
func authorOf(caller *authn.Caller) *identityv1.Principal {
	p := proto.CloneOf(caller.Person)
	p.Session, p.Run = "", ""
	return p
}

// checkApprovers returns an error if fewer people than the quorum may approve changes by the author.
func checkApprovers(terms *policyv1.ApprovalTerms, people *engine.Approvers, author string) error {
	var able []string
	for _, p := range people.Deciders {
		may := len(terms.GetApprovers()) == 0 || slices.ContainsFunc(p.Groups, func(g string) bool { return slices.Contains(terms.GetApprovers(), g) })
		if may && p.Tenant == homeTenant && p.Name != author && !slices.Contains(able, p.Name) {
			able = append(able, p.Name)
		}
	}
	if len(able) >= int(terms.GetQuorum()) {
		return nil
	}
	of := ""
	if len(terms.GetApprovers()) > 0 {
		of = " of " + strings.Join(terms.GetApprovers(), ", ")
	}
	return fmt.Errorf("%w: approvals.policy_changes asks for %d operator(s) or approver(s)%s, other than the author, and there are %d: give more people such a token",
		errUnapprovable, terms.GetQuorum(), of, len(able))
}

// apply makes the documents active if people have approved the change. Otherwise it requests an approval and returns an
// error that says that the approval is pending.
func (c *policyChange) apply(ctx context.Context, caller *authn.Caller) (*store.Revision, bool, error) {
	s := c.service
	var err error
	if c.base, err = s.store.ActiveRevision(ctx); err != nil {
		return nil, false, storeError("the active policy revision could not be read, so nothing was applied", err)
	}
	known := s.active.Load()
	if want := known.expected(c.request.GetExpectedRevision()); want != nil && *want != c.base.ID {
		return nil, false, changedError(&c.base, store.ErrRevisionChanged)
	}
	id := documentsID(c.compiled.documents)
	if id == c.base.ID && known.rejected == nil {
		return &c.base, false, nil
	}
	if err := checkApprovers(s.cfg.Changes, s.people(), c.author.GetSubject()); err != nil {
		return nil, false, fmt.Errorf("nothing was applied: %w", err)
	}
	if err := c.stage(ctx, id); err != nil {
		return nil, false, err
	}
	asked, err := c.requestApproval(ctx)
	if err != nil {
		return nil, false, err
	}
	return c.applyApproved(ctx, caller, asked)
}

// stage sets the id and the params of the change. If the same change was staged before, stage uses the params that
// approvers already see, even if the catalog has changed since then.
func (c *policyChange) stage(ctx context.Context, documents string) error {
	s := c.service
	sum := canonicaljson.Sum(changeFormat, strconv.FormatInt(c.base.Number, 10), c.base.ID, documents, c.author.GetTenant(), c.author.GetSubject(), c.request.GetComment())
	c.id = hex.EncodeToString(sum[:])
	staged, ok, err := s.store.FindChange(ctx, c.id)
	if err == nil && !ok {
		params, problem := c.describe(ctx, documents)
		if problem != nil {
			return problem
		}
		staged, err = s.store.StageChange(ctx, store.StagedChange{ID: c.id, Replaces: c.base.Number, Params: params})
	}
	switch {
	case errors.Is(err, store.ErrRevisionChanged):
		return fmt.Errorf("%w: it became active just now. Compare your documents with it (`sluice policy diff`), and apply them again", err)
	case err != nil:
		return storeError("the change could not be stored, so nothing was applied", err)
	}
	c.params = staged.Params
	return nil
}

// call returns an artificial call that represents the change, because approvals are bound to calls. The name in the
// call identifies the new documents. The server identity identifies the activation that they replace. The params
// contain both.
func (c *policyChange) call() *approvalv1.BoundCall {
	id := documentsID(c.compiled.documents)
	digest, _ := hex.DecodeString(id) // documentsID returns hexadecimal digits, so this can't fail
	return &approvalv1.BoundCall{
		ServerIdentity: fmt.Sprintf("policy activation %d %s", c.base.Number, c.base.ID),
		Call:           &policyv1.Call{Server: changeServer, Method: changeMethod, Name: id[:16], DefinitionDigest: digest, ParamsJson: c.params},
	}
}

// decide returns the decision that the change needs an approval, unsigned and signed. The signature covers the approval
// id and the attempt in use. Both are empty when an approval is requested.
func (c *policyChange) decide(use *policyv1.DecisionStatement) (*policyv1.Decision, *policyv1.SignedDecision, error) {
	set, rule := c.service.active.Load(), canonicaljson.Sum(changeFormat)
	d := &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Code: commonv1.Code_CODE_APPROVAL_PENDING,
		Message: "changes to the policy need an approval", Rule: &policyv1.RuleRef{Document: "approvals", Rule: "policy_changes"},
		PolicyRevision: set.Revision(), Approval: c.service.cfg.Changes, Idempotent: true, RuleDigest: rule[:],
	}
	signed, err := c.service.sign(set, c.author, c.call(), d, use)
	return d, signed, err
}

// ask calls send, which sends a request with a signed decision to the approval service. If the approval service has
// seen a newer revision than the one in the decision, ask calls send again, so that send signs a new decision.
func (c *policyChange) ask(ctx context.Context, send func(context.Context) error) error {
	for n := 1; ; n++ {
		err := func() error {
			ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, c.author), approvalTimeout)
			defer cancel()
			return send(ctx)
		}()
		switch {
		case err == nil:
			return nil
		case rpc.Reason(err) == "DECISION_STALE" && n < maxSignatures && ctx.Err() == nil:
			continue
		}
		return &rpc.Error{
			Code: codes.Unavailable, Reason: "APPROVAL_AWAY",
			Err: fmt.Errorf("nothing was applied, because this change needs an approval and the approval service did not process the request: apply it again (%s)", status.Convert(err).Message()),
		}
	}
}

// requestApproval requests an approval of the change, or returns the approval that was requested earlier.
func (c *policyChange) requestApproval(ctx context.Context) (*approvalv1.Approval, error) {
	var resp *approvalv1.RequestApprovalResponse
	err := c.ask(ctx, func(ctx context.Context) error {
		d, signed, err := c.decide(new(policyv1.DecisionStatement))
		if err != nil {
			return err
		}
		resp, err = c.service.deps.Approvals.RequestApproval(ctx, &approvalv1.RequestApprovalRequest{
			Bound: c.call(), Decision: d, DecisionId: rand.Text(), SignedDecision: signed,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	asked := resp.GetAsked().GetApproval()
	if asked == nil {
		return nil, refusedChange(resp.GetRefusal())
	}
	if err := c.service.store.SetApproval(ctx, c.id, asked.GetId()); err != nil {
		return nil, storeError("the approval could not be stored, so nothing was applied: apply the documents again", err)
	}
	return asked, nil
}

// applyApproved claims an approval and makes the documents active. If more people must approve the change, it returns
// an error that says that the approval is pending.
func (c *policyChange) applyApproved(ctx context.Context, caller *authn.Caller, asked *approvalv1.Approval) (*store.Revision, bool, error) {
	switch asked.GetState() { //nolint:exhaustive // RequestApproval returns only the states that are handled here
	case approvalv1.ApprovalState_APPROVAL_STATE_PENDING:
		return nil, false, c.pendingError(asked)
	case approvalv1.ApprovalState_APPROVAL_STATE_APPROVED, approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN:
	default:
		return nil, false, claimedError(asked)
	}
	claim := rand.Text()
	claimed, err := c.claim(ctx, asked, claim)
	if err != nil {
		return nil, false, err
	}
	by, err := c.check(claimed)
	if err != nil {
		c.complete(ctx, asked, claim, approvalv1.CallOutcome_CALL_OUTCOME_NEVER_SENT)
		return nil, false, err
	}
	active, changed, err := c.service.storeDocuments(ctx, caller, c.request, c.compiled, by)
	switch {
	case err == nil:
		c.complete(ctx, asked, claim, approvalv1.CallOutcome_CALL_OUTCOME_DONE)
		c.cancelOutdated(ctx)
	case errors.Is(err, store.ErrRevisionChanged), errors.Is(err, store.ErrApprovalUsed):
		c.complete(ctx, asked, claim, approvalv1.CallOutcome_CALL_OUTCOME_NEVER_SENT)
	default: // it is not known whether the documents are active, so another request for this change must be able to claim the approval
		c.complete(ctx, asked, claim, approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN)
	}
	return active, changed, err
}

// claim claims the approval, so that no other request can use it.
func (c *policyChange) claim(ctx context.Context, asked *approvalv1.Approval, id string) (*approvalv1.Claimed, error) {
	var resp *approvalv1.ClaimApprovalResponse
	err := c.ask(ctx, func(ctx context.Context) error {
		d, signed, err := c.decide(&policyv1.DecisionStatement{ApprovalId: asked.GetId(), Attempt: asked.GetAttempt()})
		if err != nil {
			return err
		}
		bound := c.call()
		resp, err = c.service.deps.Approvals.ClaimApproval(ctx, &approvalv1.ClaimApprovalRequest{
			ApprovalId: asked.GetId(), ClaimId: id, Holder: changeHolder, Attempt: asked.GetAttempt(), Decision: d, SignedDecision: signed,
			DefinitionDigest: bound.GetCall().GetDefinitionDigest(), ServerIdentity: bound.GetServerIdentity(), Lease: durationpb.New(changeLease),
		})
		return err
	})
	switch refusal := resp.GetRefusal(); {
	case err != nil:
		return nil, err
	case resp.GetClaimed() != nil:
		return resp.GetClaimed(), nil
	case refusal.GetCode() == commonv1.Code_CODE_APPROVAL_PENDING:
		return nil, c.pendingError(refusal.GetApproval())
	case refusal.GetCode() == commonv1.Code_CODE_APPROVAL_USED:
		return nil, claimedError(asked)
	default:
		return nil, refusedChange(refusal)
	}
}

// check returns an error unless a claimed approval is for this change, and enough people other than the author have
// approved the change. The approval service has already made the same checks.
func (c *policyChange) check(claimed *approvalv1.Claimed) (*changeApproval, error) {
	want, have := c.call(), claimed.GetBound()
	var people []string
	for _, vote := range claimed.GetVotes() {
		if vote.GetVerdict() == approvalv1.Verdict_VERDICT_APPROVE && vote.GetSubject() != c.author.GetSubject() && !slices.Contains(people, vote.GetSubject()) {
			people = append(people, vote.GetSubject())
		}
	}
	if !proto.Equal(want, have) || len(people) < int(c.service.cfg.Changes.GetQuorum()) {
		return nil, &rpc.Error{
			Code: codes.Internal, Reason: "APPROVAL_MISMATCH",
			Err: fmt.Errorf("nothing was applied, because the approval %s is not the approval of this change: report this as a fault", claimed.GetApproval().GetId()),
		}
	}
	text, err := json.Marshal(people)
	return &changeApproval{id: claimed.GetApproval().GetId(), replaces: c.base.Number, people: string(text)}, err
}

// complete reports to the approval service whether the documents were activated after a claim. If the report fails, the
// claim expires and the approval service treats the outcome as unknown. This is safe, because the store never activates
// documents twice with the same approval.
func (c *policyChange) complete(ctx context.Context, asked *approvalv1.Approval, claim string, outcome approvalv1.CallOutcome) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_, err := c.service.deps.Approvals.CompleteClaim(ctx, &approvalv1.CompleteClaimRequest{ApprovalId: asked.GetId(), ClaimId: claim, Holder: changeHolder, Outcome: outcome})
	if err != nil {
		c.service.deps.Log.WarnContext(ctx, "the outcome of a policy change could not be reported to the approval service", "approval", asked.GetId(), "outcome", outcome.String(), "error", err)
	}
}

// cancelOutdated cancels the approvals of changes that replace an older revision, because such a change can't become
// active. If this fails, the approvals expire later, and claiming them has no effect.
func (c *policyChange) cancelOutdated(ctx context.Context) {
	s := c.service
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(context.WithoutCancel(ctx), c.author), cleanupTimeout)
	defer cancel()
	outdated, err := s.store.DeleteChanges(ctx)
	for _, id := range outdated {
		_, problem := s.deps.Approvals.CancelApproval(ctx, &approvalv1.CancelApprovalRequest{
			ApprovalId: id, Reason: "another policy became active after this change was compared with the policy before it",
		})
		if r := rpc.Reason(problem); r != "APPROVAL_ENDED" && r != "APPROVAL_RUNNING" && r != "APPROVAL_UNKNOWN" {
			err = errors.Join(err, problem)
		}
	}
	if err != nil {
		s.deps.Log.WarnContext(ctx, "approvals of changes of an older policy could not be cancelled; they have no effect", "error", err)
	}
}

// pendingError returns the error for a change that more people must approve.
func (c *policyChange) pendingError(a *approvalv1.Approval) error {
	until := a.GetDecideBefore().AsTime().UTC().Format(time.RFC3339)
	return &rpc.Error{
		Code: codes.FailedPrecondition, Reason: "POLICY_CHANGE_PENDING",
		Facts: map[string]string{"approval": a.GetId(), "missing": strconv.Itoa(int(a.GetVotesMissing())), "until": until, "documents": documentsID(c.compiled.documents)},
		Err:   fmt.Errorf("nothing was applied yet: the approval %s needs %d more vote(s) until %s. When people have approved it, apply the same documents with the same reason again", a.GetId(), a.GetVotesMissing(), until),
	}
}

// claimedError returns the error for an approval that another request has claimed.
func claimedError(a *approvalv1.Approval) error {
	return &rpc.Error{
		Code: codes.Aborted, Reason: "POLICY_CHANGE_CLAIMED", RetryAfter: changeLease,
		Err: fmt.Errorf("another request is applying this change by the approval %s: `sluice policy revisions` shows whether it is active. If it is not, apply it again in %v", a.GetId(), changeLease),
	}
}

// refusedChange returns the error for a change after the approval service has refused the request.
func refusedChange(r *approvalv1.Refusal) error {
	wait := r.GetRetryAfter().AsDuration()
	switch r.GetCode() { //nolint:exhaustive // the other codes have no error of their own
	case commonv1.Code_CODE_APPROVAL_DENIED:
		return &rpc.Error{
			Code: codes.FailedPrecondition, Reason: "POLICY_CHANGE_DENIED", RetryAfter: wait,
			Err: fmt.Errorf("nothing was applied, because %s denied this change: %s. Change the documents, or request it again later", deniers(r.GetApproval()), r.GetApproval().GetReason()),
		}
	case commonv1.Code_CODE_TOO_MANY_PENDING:
		return &rpc.Error{
			Code: codes.ResourceExhausted, Reason: "POLICY_CHANGE_LIMITED", RetryAfter: wait,
			Err: errors.New("nothing was applied, because people were asked about too many requests of this author: wait until they have decided, or cancel some with `sluice approvals cancel` (approvals.max_pending, approvals.max_asked)"),
		}
	}
	return &rpc.Error{
		Code: codes.Aborted, Reason: "REVISION_CHANGED",
		Err: fmt.Errorf("nothing was applied, because the approval of this change is void (%s): apply it again, which requests another one", r.GetCode()),
	}
}

// deniers returns the name of the first person who denied an approval.
func deniers(a *approvalv1.Approval) string {
	for _, v := range a.GetVotes() {
		if v.GetVerdict() == approvalv1.Verdict_VERDICT_DENY {
			return v.GetSubject()
		}
	}
	return "a person"
}

// peopleOf returns the people in a JSON array of names.
func peopleOf(text string) (people []string) {
	if json.Unmarshal([]byte(text), &people) != nil {
		return nil
	}
	return people
}
