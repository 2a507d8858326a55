package redaction

import (
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// secretsDetector is the name of the detector that searches every stored copy of arguments.
const secretsDetector = "secrets"

// ForRecord returns the redactor for a stored copy of a call's arguments. The redactor replaces secrets and everything
// that the decision's redactions of arguments replace. It also replaces everything that the detectors in the decision's
// redactions of results find. timeslice has the same meaning as for [New].
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

// Recorded returns the redacted copy of a request's arguments for storage. If the arguments can't be searched, the copy
// is a text that contains the reason.
func (r *Redactor) Recorded(m *jsonrpc.Message) []byte {
	out, err := r.Arguments(m)
	if err != nil {
		return quoted("[redacted: all arguments, because " + err.Error() + "]")
	}
	return out.Arguments.Of(out.Raw)
}
