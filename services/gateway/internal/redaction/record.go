package redaction

import (
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// secretsDetector is the name of the detector that is applied to every stored copy of arguments.
const secretsDetector = "secrets"

// ForRecord returns the redactor for a stored copy of the arguments of a call. In the copy, the redactor replaces
// secrets, the values that the decision's redactions of arguments select, and what the decision's detectors for results
// find. timeslice has the same meaning as for [New].
func ForRecord(list []*policyv1.Redaction, timeslice func(bytes int) (end func(), err error)) *Redactor {
	const target = policyv1.RedactionTarget_REDACTION_TARGET_ARGUMENTS
	own := []*policyv1.Redaction{{Target: target, Detector: secretsDetector}}
	for _, one := range list {
		if one.GetDetector() != "" || one.GetTarget() != policyv1.RedactionTarget_REDACTION_TARGET_RESULT {
			own = append(own, &policyv1.Redaction{Target: target, Path: one.GetPath(), Detector: one.GetDetector()})
		}
	}
	return New(own, timeslice)
}

// Recorded returns the redacted copy of a request's arguments that is stored. If the arguments can't be searched, the
// copy is a text that states the reason.
func (r *Redactor) Recorded(m *jsonrpc.Message) []byte {
	out, err := r.Arguments(m)
	if err != nil {
		return quoted("[redacted: all arguments, because " + err.Error() + "]")
	}
	return out.Arguments.Of(out.Raw)
}
