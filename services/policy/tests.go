package policy

import (
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
)

// CountTests returns the number of tests in documents that load together, and 0 if they do not load.
func CountTests(documents []*policyv1.Document) int {
	files := make([]document.File, len(documents))
	for i, d := range documents {
		files[i] = document.File{Path: d.GetPath(), Text: []byte(d.GetText())}
	}
	set, err := document.ParseSet(files, nil, time.Now())
	if err != nil {
		return 0
	}
	return len(set.Tests)
}

// Schema returns the JSON Schema of policy documents, for editors.
func Schema() []byte { return document.Schema() }
