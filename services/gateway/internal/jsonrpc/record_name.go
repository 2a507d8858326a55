package jsonrpc

import (
	"cmp"

	"github.com/sluice-mesh/sluice/services/internal/publicname"
)

// RecordName returns the target of a request in the shortened form that records contain. Policy decisions do not use
// this form, because the policy service evaluates the full name.
func RecordName(m *Message) string { return publicname.Of(cmp.Or(m.URI, m.Name, m.TaskID)) }
