package policy

import (
	"cmp"
	"context"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/dialect"
)

// importedPath is the path of the document that contains the translated policy.
const importedPath = "imported.yaml"

var dialects = map[policyv1.Dialect]dialect.Format{
	policyv1.Dialect_DIALECT_HOSTED_JSON:   dialect.HostedJSON,
	policyv1.Dialect_DIALECT_OPERATOR_YAML: dialect.OperatorYAML,
}

var severities = map[dialect.Severity]policyv1.Severity{
	dialect.Error:   policyv1.Severity_SEVERITY_ERROR,
	dialect.Warning: policyv1.Severity_SEVERITY_WARNING,
	dialect.Info:    policyv1.Severity_SEVERITY_INFO,
}

// Dialects returns the dialects that [Import] translates, by name.
func Dialects() map[string]policyv1.Dialect {
	out := make(map[string]policyv1.Dialect, len(dialects))
	for d, format := range dialects {
		out[format.String()] = d
	}
	return out
}

// Import translates a policy from another dialect into a document. If this is not possible, the response contains
// findings and no document. Import returns an error only if ctx is done.
func Import(ctx context.Context, req *policyv1.ImportDocumentRequest) (*policyv1.ImportDocumentResponse, error) {
	text, problems, err := dialect.Translate(ctx, &dialect.Source{
		File: cmp.Or(req.GetPath(), "policy"), Text: []byte(req.GetText()), Format: dialects[req.GetDialect()], Server: req.GetServer(),
	})
	if err != nil {
		return nil, err
	}
	out := new(policyv1.ImportDocumentResponse)
	for _, p := range problems {
		found := findingOf(p.Problem)
		found.Severity, found.Check = severities[p.Severity], "import"
		out.Findings = append(out.Findings, found)
	}
	if text == nil {
		return out, nil
	}
	out.Document = &policyv1.Document{Path: importedPath, Text: string(text)}
	for _, f := range Lint([]*policyv1.Document{out.GetDocument()}) {
		if f.GetSeverity() == policyv1.Severity_SEVERITY_ERROR {
			out.Document, out.Findings = nil, append(out.GetFindings(), f)
		}
	}
	return out, nil
}

// ImportDocument implements policyv1.PolicyServiceServer.
func (s *Service) ImportDocument(ctx context.Context, req *policyv1.ImportDocumentRequest) (*policyv1.ImportDocumentResponse, error) {
	done, err := s.lintSlots.Acquire(ctx, callerOwner(ctx))
	if err != nil {
		return nil, err
	}
	defer done()
	return Import(ctx, req)
}
