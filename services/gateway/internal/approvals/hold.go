package approvals

import (
	"errors"
	"regexp"
	"strings"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// maxHeld is how many calls of one principal and the agents made by it are held at a time. All principals of one
// person together may hold four times as many. Other calls get their tickets at once.
const maxHeld = 16

// Client sets how long calls of some clients are held.
type Client struct {
	// Name is a pattern for the name that a client declares: `*` matches any text. The name is not verified; a false
	// one only changes the time.
	Name string
	// Hold is how long their calls are held open; 0 gives the ticket at once.
	Hold time.Duration
}

// patience is a configured client with its compiled pattern.
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

// HoldUntil returns until when a call that arrives at now is held if its client declares that name.
func (w *Waiter) HoldUntil(client string, now time.Time) time.Time {
	for _, p := range w.clients {
		if p.name.MatchString(client) {
			return now.Add(p.hold)
		}
	}
	return now.Add(w.cfg.Hold)
}

// take counts a held call, and reports whether the call may be held.
func (w *Waiter) take(p *identityv1.Principal) bool {
	accounts := principal.AccountsOf(p)
	return w.held.Take(&accounts, 1) == nil
}

func (w *Waiter) leave(p *identityv1.Principal) {
	accounts := principal.AccountsOf(p)
	w.held.Give(&accounts, 1)
}
