package pipeline

import (
	"context"
	"slices"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/redaction"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// redactArguments applies the decision's redactions to the arguments of an allowed call, so that approvers and the
// server receive redacted arguments. It also sets the redactor for the server's messages. If the redactions can't be
// applied, redactArguments refuses the call.
func (p *Pipeline) redactArguments(ctx context.Context, a attempt.Attempt) (attempt.Attempt, *refusal.Refusal) {
	list := a.Decision.GetRedactions()
	if len(list) == 0 || a.Refusal() != nil {
		return a, nil
	}
	if a.Transport == upstream.KindHost {
		return a, notRedacted(a, "the client runs this tool itself, so that its result does not pass the gateway; limit the rule to other servers (match.server)")
	}
	if a.AnsweredLater && slices.ContainsFunc(list, ofResults) {
		return a, notRedacted(a, "the client answers this request in its next request, in which values can't be replaced; limit the rule to other methods (match.method)")
	}
	a.Redactor = redaction.New(list, timeslices(ctx, a))
	sent, err := a.Redactor.Arguments(a.Sent)
	switch {
	case err != nil:
		return a, notRedacted(a, "the arguments can't be searched: "+err.Error())
	case sent != a.Sent && len(a.ParamHeaders) > 0:
		return a, notRedacted(a, "the tool repeats arguments in HTTP headers, in which they can't be replaced; limit the rule to other tools")
	}
	a.Sent = sent
	return a, nil
}

// addRedactions adds the redactions of results in the current decision to the call's redactor. The decision for the
// claim of an approval can contain new redactions of results. It contains no new redactions of arguments, because the
// claim would then have failed.
func addRedactions(ctx context.Context, a attempt.Attempt) attempt.Attempt {
	if list := a.Decision.GetRedactions(); !a.Redactor.Makes(list) {
		a.Redactor = a.Redactor.With(list, timeslices(ctx, a))
	}
	return a
}

// ofResults reports whether a redaction applies to results.
func ofResults(r *policyv1.Redaction) bool {
	return r.GetTarget() != policyv1.RedactionTarget_REDACTION_TARGET_ARGUMENTS
}

// timeslices returns a function that a redactor calls before it searches a message. The function waits until the caller
// may use a processor.
func timeslices(ctx context.Context, a attempt.Attempt) func(bytes int) (end func(), err error) {
	memory := a.Memory // if the closure captured the whole attempt, every call would allocate an attempt
	return func(bytes int) (func(), error) { return memory.TimesliceFor(ctx, bytes) }
}

func notRedacted(a attempt.Attempt, why string) *refusal.Refusal {
	first := a.Decision.GetRedactions()[0].GetRule()
	return &refusal.Refusal{
		Code: commonv1.Code_CODE_DENIED_BY_RULE, Rule: first, PolicyRevision: a.Decision.GetPolicyRevision(),
		Message: "the redactions of rule " + first.GetDocument() + "/" + first.GetRule() + " can't be made: " + why + ".",
	}
}
