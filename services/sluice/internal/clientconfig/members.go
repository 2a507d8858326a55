package clientconfig

import (
	"slices"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// IsConnection reports whether a member of an entry describes the connection to the server, such as its command. All
// other members affect only the client.
func (c Client) IsConnection(member string) bool {
	return member != "" && slices.Contains(c.dialect.transportKeys(), member)
}

// IsDefault reports whether a member has the value that clients assume if the member is missing. It applies to entries
// that start a program. Clients add such members when they save their files.
func (c Client) IsDefault(member string, n *configedit.Node) bool {
	d := c.dialect
	switch {
	case n.Kind == configedit.Null:
		return true
	case member == d.disabled:
		return n.Kind == configedit.Bool && n.Text == "false"
	case member == d.enabled:
		return n.Kind == configedit.Bool && n.Text == "true"
	case member == d.typeKey || member == d.otherType:
		return n.Kind == configedit.String && slices.Contains([]string{"stdio", "local", d.stdioType}, n.Text)
	default:
		return c.IsConnection(member) && n.Kind != configedit.Bool && n.Kind != configedit.Number && len(n.Text)+len(n.Items)+len(n.Members) == 0
	}
}

// ReadEntry parses the value of an entry with the given name. The returned entry has no path.
func (c Client) ReadEntry(name string, n *configedit.Node) Entry {
	return readEntry(c.dialect, n, Entry{Name: name})
}
