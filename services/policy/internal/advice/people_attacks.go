package advice

// peopleAttacks contains the attacks that exploit people: the principals in a caller's delegation chain, and the
// approvers of calls.
var peopleAttacks = []Entry{
	{
		ID: "AT17", Name: "Confused deputy",
		Happens: "A person with few rights lets an agent with many rights do the work. " +
			"The call comes from the agent and its rights are enough, so it does not matter for whom it acts.",
		Stopped: "A call is decided for its caller and for every principal in the caller's chain, and the strictest decision wins. A rule about the person with few rights is enough.",
		Rule: `version: 1
name: AT17-confused-deputy
rules:
  - name: guests-change-nothing
    match: {groups: [contractors, "guest-*"], category: [write, execute, destructive, financial]}
    action: deny
    reason: guests change nothing, even through agents
`,
		References: []string{mcp07, asi03},
		targets: []target{
			{relevanceSome, []trait{hasCategory(read), isRaised(sensitivity)}},
			{relevanceMuch, []trait{hasCategory(execute, destructive, financial)}},
			{relevanceMuch, []trait{isHigh(sensitivity)}},
		},
	},
	{
		ID: "AT18", Name: "Approval fatigue",
		Happens: "People are asked so often about calls that do not matter that they approve without reading. " +
			"The one call that matters is among them.",
		Stopped: "One approval covers many calls that do not matter, and those that matter need two people. In addition, no caller can request approval more than 30 times an hour, unless the configuration says otherwise.",
		Rule: `version: 1
name: AT18-approval-fatigue
rules:
  - name: routine-is-asked-about-once
    match: {tool: post_comment}
    action: require_approval
    grant: {calls: 50, within: 8h}
  - name: two-people-for-loss-and-money
    match: {category: [destructive, financial]}
    action: require_approval
    quorum: 2
    reason: it can't be taken back
`,
		References: []string{asi09},
		targets: []target{
			{relevanceSome, []trait{isUncertain}},
			{relevanceMuch, []trait{hasCategory(destructive, financial)}},
			{relevanceMuch, []trait{isCritical}},
		},
	},
}
