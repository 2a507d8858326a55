package config

import (
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// Approvals configures calls that need a person's approval.
type Approvals struct {
	// Hold is how long a call is held open before the client gets a ticket: 1 s to 10 m, or `0s`.
	Hold time.Duration `yaml:"hold"`
	// Clients lists clients with a different `hold`. The first match applies.
	Clients []ApprovalClient `yaml:"clients"`
	// Decide is the time to approve or deny a call: 1 s to 30 days.
	Decide time.Duration `yaml:"decide"`
	// Execute is the maximum time from the approval of a call to its execution: 1 s to 30 days.
	Execute time.Duration `yaml:"execute"`
	// MaxPending is the maximum number of calls of one principal that wait for approval: 1 to 1,000.
	MaxPending int `yaml:"max_pending"`
	// MaxAsked limits how many approvals one principal may request.
	MaxAsked MaxAsked `yaml:"max_asked"`
	// OwnerMayApprove lets the owner of an agent vote on the agent's calls.
	OwnerMayApprove bool `yaml:"owner_may_approve"`
	// PolicyChanges makes every change to the policy documents in the store wait until people other than its author have
	// approved it.
	PolicyChanges *PolicyChanges `yaml:"policy_changes"`
	// Notify configures the channels that notify people about approvals.
	Notify Notify `yaml:"notify"`
}

// PolicyChanges specifies who approves changes to the policy documents.
type PolicyChanges struct {
	// Approvers are the groups whose members may approve, at most 64. Empty means every operator and approver of the
	// tenant `default`.
	Approvers []string `yaml:"approvers"`
	// Quorum is the number of people who must approve: 1 to 16. Empty means `1`. The author never counts.
	Quorum *int `yaml:"quorum"`
	// DecideWithin is the time to approve or deny the change: 1 s to 30 days. Empty means `24h`.
	DecideWithin *time.Duration `yaml:"decide_within"`
	// ExecuteWithin is the time to apply the change after its approval: 1 s to 30 days. Empty means `24h`.
	ExecuteWithin *time.Duration `yaml:"execute_within"`
}

// policyChangeTime is the default of [PolicyChanges.DecideWithin] and [PolicyChanges.ExecuteWithin].
const policyChangeTime = 24 * time.Hour

// People returns the number of people who must approve.
func (c *PolicyChanges) People() int {
	if c.Quorum == nil {
		return 1
	}
	return *c.Quorum
}

// Times returns the time that people have to approve or deny the change, and the time that the author then has to apply
// it.
func (c *PolicyChanges) Times() (decide, execute time.Duration) {
	decide, execute = policyChangeTime, policyChangeTime
	if c.DecideWithin != nil {
		decide = *c.DecideWithin
	}
	if c.ExecuteWithin != nil {
		execute = *c.ExecuteWithin
	}
	return decide, execute
}

func (f *File) checkPolicyChanges(p *problems) {
	c := f.Approvals.PolicyChanges
	if c == nil {
		return
	}
	const at = "approvals.policy_changes"
	if !f.PoliciesInStore() {
		p.addf(at, "needs `policies: [store]`: policy files are changed outside of the mesh, so the mesh can't ask people to approve the changes")
	}
	if n := c.People(); n < 1 || n > 16 {
		p.addf(at+".quorum", "%d is not between 1 and 16", n)
	}
	decide, execute := c.Times()
	p.checkBetween(at+".decide_within", decide, time.Second, maxDuration)
	p.checkBetween(at+".execute_within", execute, time.Second, maxDuration)
	if n := len(c.Approvers); n > maxApproverGroups {
		p.addf(at+".approvers", "%d groups are more than %d", n, maxApproverGroups)
	}
	for i, group := range c.Approvers {
		switch where := strictyaml.Index(at+".approvers", i); {
		case group == "" || len(group) > maxGroupName || !isPlain(group):
			p.addf(where, "is not a name of 1 to %d bytes without control characters", maxGroupName)
		case slices.Contains(c.Approvers[:i], group):
			p.addf(where, "%q is listed twice", group)
		}
	}
}

// maxApproverGroups is the maximum number of groups whose members may approve.
const maxApproverGroups = 64

// MaxAsked limits how many approvals one principal may request.
type MaxAsked struct {
	// Max is the maximum number of approvals that one principal may request in any `window`: 1 to 100,000.
	Max int `yaml:"max"`
	// Window is the length of this period: 1 s to 24 h.
	Window time.Duration `yaml:"window"`
}

// MaxAskedWindow is the maximum [MaxAsked.Window].
const MaxAskedWindow = 24 * time.Hour

// ApprovalClient sets how long calls of some clients are held open.
type ApprovalClient struct {
	// Name is a pattern for the name that the client declares, 1 to 128 bytes; `*` matches any text. Required.
	Name string `yaml:"name"`
	// Hold replaces `approvals.hold` for these clients. Required.
	Hold *time.Duration `yaml:"hold"`
}
