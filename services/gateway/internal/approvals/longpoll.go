package approvals

import (
	"errors"
	"regexp"
	"strings"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// maxHeld limits how many calls may be held at the same time for a principal and the agents that it has created. For
// all principals of one person together, the limit is four times as high. The caller of any further call immediately
// receives the ticket, which is a refusal that contains the approval's id.
const maxHeld = 16

// ClientHold sets the hold time for clients with certain names.
type ClientHold struct {
	// Name is a pattern for the name that a client declares. `*` matches any string. The gateway does not verify the
	// declared name, because a false name would only change the hold time.
	Name string
	// Hold is how long the gateway holds calls from these clients. If it is 0, the clients immediately receive the
	// ticket, which is a refusal that contains the approval's id.
	Hold time.Duration
}

type compiledHold struct {
	name *regexp.Regexp
	hold time.Duration
}

func compileHolds(clients []ClientHold) ([]compiledHold, error) {
	out := make([]compiledHold, 0, len(clients))
	for _, c := range clients {
		if c.Hold < 0 {
			return nil, errors.New("approvals: hold must not be negative")
		}
		name, err := regexp.Compile("(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(c.Name), `\*`, ".*") + "$")
		if err != nil {
			return nil, err
		}
		out = append(out, compiledHold{name, c.Hold})
	}
	return out, nil
}

// HoldUntil returns the time at which the hold ends for a call that arrives now from a client that declares the given
// name.
func (w *Client) HoldUntil(client string, now time.Time) time.Time {
	for _, p := range w.clients {
		if p.name.MatchString(client) {
			return now.Add(p.hold)
		}
	}
	return now.Add(w.cfg.Hold)
}

// addHeld reports whether a call of the principal may be held. If it may, addHeld counts the call as held.
func (w *Client) addHeld(p *identityv1.Principal) bool {
	accounts := principal.AccountsOf(p)
	return w.held.Acquire(&accounts, 1) == nil
}

func (w *Client) removeHeld(p *identityv1.Principal) {
	accounts := principal.AccountsOf(p)
	w.held.Release(&accounts, 1)
}
