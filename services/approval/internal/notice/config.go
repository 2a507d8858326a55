package notice

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/sluice-mesh/sluice/services/approval/internal/store"
)

// Config says who is told of approvals, and how. The zero value tells nobody.
type Config struct {
	// Webhooks are told as machines are.
	Webhooks []Webhook
	// Mail writes to people; nil writes to nobody.
	Mail *Mail
	// Slack asks people in a channel; nil asks in none.
	Slack *Slack
}

// Target is what all ways of telling people have in common.
type Target struct {
	// Name names it in the outbox and in logs: 1 to 32 lower-case letters, digits
	// and hyphens, no two alike. Notices that wait are lost to another name.
	Name string
	// Tenant is the one whose approvals it is told of; empty for all.
	Tenant string
	// After makes it an escalation: the share of the time to decide, above 0 and
	// below 1, after which it is told that nobody has decided yet, and of nothing
	// else. 0 tells it at once, and of how approvals end.
	After float64
}

var names = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

func (t Target) validate() error {
	if !names.MatchString(t.Name) {
		return fmt.Errorf("notices: %q is no name: write 1 to 32 lower-case letters, digits and hyphens", t.Name)
	}
	if !(t.After >= 0 && t.After < 1) { // which NaN is not
		return fmt.Errorf("notices: %s: after is a share of the time to decide: 0, or up to below 1", t.Name)
	}
	return nil
}

// way is a configured way of telling people.
type way interface {
	target() Target
	// open makes the channel; it reaches nobody yet.
	open(Deps) (Channel, error)
}

func (c *Config) ways() (out []way) {
	for i := range c.Webhooks {
		out = append(out, &c.Webhooks[i])
	}
	if c.Mail != nil {
		out = append(out, c.Mail.readers()...)
	}
	if c.Slack != nil {
		out = append(out, c.Slack)
	}
	return out
}

// Validate returns everything that is wrong with the configuration.
func (c *Config) Validate() error {
	var errs []error
	for i := range c.Webhooks {
		errs = append(errs, c.Webhooks[i].validate())
	}
	if c.Mail != nil {
		errs = append(errs, c.Mail.validate())
	}
	if c.Slack != nil {
		errs = append(errs, c.Slack.validate())
	}
	seen := make(map[string]bool)
	for _, w := range c.ways() {
		name := w.target().Name
		if seen[name] {
			errs = append(errs, fmt.Errorf("notices: %s is there twice", name))
		}
		seen[name] = true
	}
	return errors.Join(errs...)
}

// Channels are what the store makes notices for.
func (c *Config) Channels() (out []store.Channel) {
	for _, w := range c.ways() {
		t := w.target()
		out = append(out, store.Channel{Name: t.Name, Tenant: t.Tenant, After: t.After})
	}
	return out
}
