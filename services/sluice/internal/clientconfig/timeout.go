package clientconfig

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// A timeoutKey describes the member of a server's entry that sets the timeout of calls.
type timeoutKey struct {
	name string
	unit time.Duration
}

// timeoutKeys contains the members that set a timeout, by client ID. Other clients have no such member. See
// docs/clients.md for the sources.
var timeoutKeys = map[string]timeoutKey{
	"claude-code": {"timeout", time.Millisecond},
	"cline":       {"timeout", time.Second},
	"codex":       {"tool_timeout_sec", time.Second},
	"gemini":      {"timeout", time.Millisecond},
	"goose":       {"timeout", time.Second},
	"opencode":    {"timeout", time.Millisecond},
	"zed":         {"timeout", time.Second},
}

// maxSetTimeout is the maximum timeout that is read from an entry. It prevents an overflow when the value is multiplied
// by the unit.
const maxSetTimeout = 1e6 * time.Hour

// CallTimeout returns how long the client waits for the result of a call to an entry's server, or 0 if this is not
// known.
func (c Client) CallTimeout(e Entry) time.Duration {
	key, ok := timeoutKeys[c.ID]
	at := slices.IndexFunc(e.kept, func(m configedit.Field) bool { return ok && m.Name == key.name })
	if at < 0 {
		return c.Limits.Call
	}
	node, ok := e.kept[at].Value.(*configedit.Node)
	if !ok || node.Kind != configedit.Number {
		return c.Limits.Call
	}
	value, err := strconv.ParseFloat(node.Text, 64)
	if err != nil || value <= 0 || value > float64(maxSetTimeout)/float64(key.unit) {
		return c.Limits.Call
	}
	return time.Duration(value * float64(key.unit))
}

// TimeoutMember returns the member that sets the call timeout in an entry, such as "timeout = 60". It returns "" if the
// client's entries have no such member.
func (c Client) TimeoutMember(timeout time.Duration) string {
	key, ok := timeoutKeys[c.ID]
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s = %d", key.name, (timeout+key.unit-1)/key.unit)
}

// ProgressExtendsCalls reports whether progress notifications from the server make the client wait longer for the
// result of a call.
func (c Client) ProgressExtendsCalls() bool { return c.ID == "opencode" }
