package config

import "time"

// Approvals configures calls that wait for people.
type Approvals struct {
	// Hold is how long a call is held open before the client gets a ticket: 1 s to 10 m. `0s` gives the ticket at once.
	Hold time.Duration `yaml:"hold"`
	// Clients set another `hold` for some clients. The first entry that matches counts.
	Clients []ApprovalClient `yaml:"clients"`
	// Decide is how long people have to decide: 1 s to 30 days.
	Decide time.Duration `yaml:"decide"`
	// Execute is how long an approved call may wait to run: 1 s to 30 days.
	Execute time.Duration `yaml:"execute"`
	// MaxPending is how many calls of one principal may wait at a time: 1 to 1,000.
	MaxPending int `yaml:"max_pending"`
	// MaxAsked bounds how often people are asked for one principal.
	MaxAsked MaxAsked `yaml:"max_asked"`
	// OwnerMayApprove lets the owner of an agent vote on the agent's calls.
	OwnerMayApprove bool `yaml:"owner_may_approve"`
	// Notify configures the channels that report approvals.
	Notify Notify `yaml:"notify"`
}

// MaxAsked bounds how often one principal may request approvals.
type MaxAsked struct {
	// Max is how many approvals one principal may request in any `window`: 1 to 100,000.
	Max int `yaml:"max"`
	// Window is the length of that time: 1 s to 24 h.
	Window time.Duration `yaml:"window"`
}

// MaxAskedWindow is the longest [MaxAsked.Window].
const MaxAskedWindow = 24 * time.Hour

// ApprovalClient sets how long calls of some clients are held.
type ApprovalClient struct {
	// Name is a pattern for the name that the client declares, 1 to 128 bytes; `*` matches any text. Required.
	Name string `yaml:"name"`
	// Hold replaces `approvals.hold` for these clients. Required.
	Hold *time.Duration `yaml:"hold"`
}
