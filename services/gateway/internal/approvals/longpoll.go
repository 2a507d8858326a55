package approvals

import (
	"errors"
	"regexp"
	"strings"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// maxHeld is the maximum number of calls that are held at a time for one principal and the agents that it has made. All
// principals of one person together may have four times as many held calls. Every further call gets its ticket at once.
const maxHeld = 16

// Client sets how long calls of some clients are held.
type Client struct {
	// Name is a pattern for the name that a client declares: `*` matches any text. The name is not verified. A false
	// name only changes the hold time.
	Name string
	// Hold is how long calls of these clients are held open. If Hold is 0, they get the ticket at once.
	Hold time.Duration
}

// patience is the hold time of some clients, with the compiled pattern for their names.
type patience struct {
	name *regexp.Regexp
	hold time.Duration
}

func patiences(clients []Client) ([]patience, error) {
	out := make([]patience, 0, len(clients))
	for _, c := range clients {
		if c.Hold < 0 {
			return nil, errors.New("approvals: hold must not be negative")
		}
		name, err := regexp.Compile("(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(c.Name), `\*`, ".*") + "$")
		if err != nil {
			return nil, err
		}
		out = append(out, patience{name, c.Hold})
	}
	return out, nil
}

// HoldUntil returns the time until which a call is held that arrives at now from a client with this declared name.
func (w *Waiter) HoldUntil(client string, now time.Time) time.Time {
	for _, p := range w.clients {
		if p.name.MatchString(client) {
			return now.Add(p.hold)
		}
	}
	return now.Add(w.cfg.Hold)
}

// take counts a call of the principal as held, and reports whether the call may be held.
func (w *Waiter) take(p *identityv1.Principal) bool {
	accounts := principal.AccountsOf(p)
	return w.held.Take(&accounts, 1) == nil
}

func (w *Waiter) leave(p *identityv1.Principal) {
	accounts := principal.AccountsOf(p)
	w.held.Give(&accounts, 1)
}
