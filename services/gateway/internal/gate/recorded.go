package gate

import (
	"cmp"

	"github.com/sluice-mesh/sluice/services/internal/publicname"
)

// Recorded is what records say that a request names. Policy judges the whole.
func Recorded(m *Message) string { return publicname.Of(cmp.Or(m.URI, m.Name, m.TaskID)) }
