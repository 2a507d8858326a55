package gate

import (
	"cmp"

	"github.com/sluice-mesh/sluice/services/internal/publicname"
)

// Recorded returns the shortened name of what a request names, for records. Policy judges the full name.
func Recorded(m *Message) string { return publicname.Of(cmp.Or(m.URI, m.Name, m.TaskID)) }
