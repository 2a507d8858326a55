package config

import "time"

// Approvals configures calls that need a person's approval.
type Approvals struct {
	// Hold is the time for which a call is held open before the client receives a ticket: 1 s to 10 m. With `0s`, the
	// client receives the ticket immediately.
	Hold time.Duration `yaml:"hold"`
	// Clients are the clients with another `hold`. The first entry that matches a client applies.
	Clients []ApprovalClient `yaml:"clients"`
	// Decide is the time that people have to decide: 1 s to 30 days.
	Decide time.Duration `yaml:"decide"`
	// Execute is the time that an approved call may wait until it is sent: 1 s to 30 days.
	Execute time.Duration `yaml:"execute"`
	// MaxPending is the maximum number of calls of one principal that wait for approval at a time: 1 to 1,000.
	MaxPending int `yaml:"max_pending"`
	// MaxAsked limits the approval requests of one principal.
	MaxAsked MaxAsked `yaml:"max_asked"`
	// OwnerMayApprove lets the owner of an agent vote on the agent's calls.
	OwnerMayApprove bool `yaml:"owner_may_approve"`
	// Notify configures the channels that notify people of approvals.
	Notify Notify `yaml:"notify"`
}

// MaxAsked limits the approval requests of one principal.
type MaxAsked struct {
	// Max is the maximum number of approvals that one principal requests in any `window`: 1 to 100,000.
	Max int `yaml:"max"`
	// Window is the length of the period: 1 s to 24 h.
	Window time.Duration `yaml:"window"`
}

// MaxAskedWindow is the maximum [MaxAsked.Window].
const MaxAskedWindow = 24 * time.Hour

// ApprovalClient sets the time for which calls of some clients are held open.
type ApprovalClient struct {
	// Name is a pattern for the name that the client declares, 1 to 128 bytes; `*` matches any string. Required.
	Name string `yaml:"name"`
	// Hold replaces `approvals.hold` for these clients. Required.
	Hold *time.Duration `yaml:"hold"`
}
