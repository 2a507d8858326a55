package notice

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/sluice-mesh/sluice/services/approval/internal/store"
)

// Config configures the channels. The zero value has no channels.
type Config struct {
	Webhooks []Webhook
	// Mail notifies approvers by mail. If it is nil, no mail is sent.
	Mail *Mail
	// Slack notifies approvers in a Slack channel. If it is nil, no messages are sent to Slack.
	Slack *Slack
}

// Target contains the settings that are common to all kinds of channels.
type Target struct {
	// Name identifies the channel in the outbox and in logs. It must be unique and consist of 1 to 32 lower-case letters,
	// digits and hyphens. If the name is changed, unsent notices with the old name are never sent.
	Name string
	// Tenant limits the channel to approvals of one tenant. If it is empty, the channel is for all tenants.
	Tenant string
	// After is a fraction of the time that people have to decide. It must be at least 0 and below 1. If it is 0, the
	// channel receives a notice when approvers are asked, when the call is approved, and when the approval ends.
	// Otherwise, the channel is an escalation. It receives a notice only if the approval is still pending after this
	// fraction of the time.
	After float64
}

var channelNames = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

func (t Target) validate() error {
	if !channelNames.MatchString(t.Name) {
		return fmt.Errorf("notices: the name %q must be 1 to 32 lower-case letters, digits and hyphens", t.Name)
	}
	if !(t.After >= 0 && t.After < 1) { // this condition is also true for NaN
		return fmt.Errorf("notices: %s: after must be at least 0 and below 1, is %v", t.Name, t.After)
	}
	return nil
}

type channelConfig interface {
	target() Target
	// open creates the channel. It does not connect to a server.
	open(Deps) (Channel, error)
}

func (c *Config) channelConfigs() (out []channelConfig) {
	for i := range c.Webhooks {
		out = append(out, &c.Webhooks[i])
	}
	if c.Mail != nil {
		out = append(out, c.Mail.recipients()...)
	}
	if c.Slack != nil {
		out = append(out, c.Slack)
	}
	return out
}

// Validate returns all errors in the configuration.
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
	for _, w := range c.channelConfigs() {
		name := w.target().Name
		if seen[name] {
			errs = append(errs, fmt.Errorf("notices: two channels have the name %s; rename one of them", name))
		}
		seen[name] = true
	}
	return errors.Join(errs...)
}

// Channels returns the channels for which the store writes notices.
func (c *Config) Channels() (out []store.Channel) {
	for _, w := range c.channelConfigs() {
		t := w.target()
		out = append(out, store.Channel{Name: t.Name, Tenant: t.Tenant, After: t.After})
	}
	return out
}
