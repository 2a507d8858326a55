package advice

// callAttacks contains the attacks that exploit the effects of calls. In these attacks, calls are too frequent, change
// too much, or have an unintended effect.
var callAttacks = []Entry{
	{
		ID: "AT01", Name: "Runaway loop",
		Happens: "An agent makes the same call again and again, because an answer is not what it expects or because nothing tells it to stop. " +
			"Each call may be harmless; thousands of them fill a system, or cost money.",
		Stopped: "A limit for each session, server and tool stops it: the slower, the more a call can do.",
		Rule: `version: 1
name: AT01-runaway-loop
rules:
  - name: reading-ends-somewhere
    match: {category: read}
    rate_limit: {max: 120, window: 60, per: [session, server, tool]}
  - name: writing-is-slow
    match: {category: write}
    rate_limit: {max: 30, window: 60, per: [session, server, tool]}
  - name: all-else-is-slower
    match: {category: [execute, destructive, financial]}
    rate_limit: {max: 10, window: 60, per: [session, server, tool]}
`,
		References: []string{asi02, asi08},
		targets:    []target{{relevanceSome, []trait{hasCategory(read, financial)}}, {relevanceMuch, []trait{hasCategory(write, execute)}}},
	},
	{
		ID: "AT02", Name: "Autonomous destruction",
		Happens: "An agent removes or ends something for good, because it was misled or took it for a step of its task. " +
			"No person was asked, and it can't be undone.",
		Stopped: "A person decides on each call that removes for good.",
		Rule: `version: 1
name: AT02-autonomous-destruction
rules:
  - name: people-decide-on-loss
    match: {category: destructive}
    action: require_approval
    reason: it removes or overwrites for good
`,
		References: []string{asi02, asi10},
		targets:    []target{{relevanceAll, []trait{hasCategory(destructive)}}},
	},
	{
		ID: "AT03", Name: "Unwanted payment",
		Happens: "An agent pays, refunds or orders, because a text that it read says so: an unchecked invoice, or a message in the name of the boss. " +
			"Money that has left rarely comes back.",
		Stopped: "A person decides on each call that moves money, and sees the amount and who gets it.",
		Rule: `version: 1
name: AT03-unwanted-payment
rules:
  - name: people-decide-on-money
    match: {category: financial}
    action: require_approval
    reason: it moves money
`,
		References: []string{asi02, asi09},
		targets:    []target{{relevanceAll, []trait{hasCategory(financial)}}},
	},
	{
		ID: "AT04", Name: "Silent overwrite",
		Happens: "A call that should add something replaces what is there: a file, a setting, the text of a page. " +
			"The tool only writes, so no person checks it, and the old content is lost.",
		Stopped: "A person decides on writes by tools that may overwrite. Only a trusted server is believed when it says that its tool just adds.",
		Rule: `version: 1
name: AT04-silent-overwrite
rules:
  - name: people-decide-on-overwrites
    match: {category: write, annotations: {destructiveHint: true}}
    action: require_approval
    reason: it may overwrite what is there
`,
		References: []string{asi02},
		targets:    []target{{relevanceSome, []trait{hasCategory(destructive)}}, {relevanceMuch, []trait{hasCategory(write)}}, {relevanceAll, []trait{hasCategory(write), isRisky}}},
	},
	{
		ID: "AT05", Name: "Bulk effect",
		Happens: "One call changes very many things at once: all rows, a whole folder, every member of a list. " +
			"A limit on calls counts it as one.",
		Stopped: "A person decides on tools that touch much. One approval covers later calls only if a condition shows that they touch only a few things.",
		Rule: `version: 1
name: AT05-bulk-effect
rules:
  - name: few-at-a-time
    match: {category: [write, destructive], risk: [high, critical]}
    action: require_approval
    reason: one call of it can touch much
    grant:
      calls: 50
      within: 1h
      where: >-
        size(args.ids) > 0 && size(args.ids) <= 10 && args.ids[0] != ""
        && args.ids.all(id, id.matches("^[0-9]{1,20}$")) && args.all(k, k in ["ids", "label"])
`,
		References: []string{asi02, asi08},
		targets: []target{
			{relevanceSome, []trait{hasCategory(write, execute, destructive), isRaised(blastRadius)}},
			{relevanceAll, []trait{hasCategory(write, execute, destructive, financial), isHigh(blastRadius)}},
		},
	},
	{
		ID: "AT06", Name: "Dangerous action in an argument",
		Happens: "One tool does many things, and an argument chooses which. Its name sounds harmless and it is mostly called to look something up, " +
			"so a call that deletes passes unseen.",
		Stopped: "A person decides on such tools. One approval covers later calls only if the argument chooses an action that is known to be harmless.",
		Rule: `version: 1
name: AT06-dangerous-action-in-an-argument
rules:
  - name: harmless-actions-are-asked-about-once
    match: {tags: depends-on-argument}
    action: require_approval
    reason: an argument chooses what it does
    grant:
      calls: 100
      within: 8h
      critical: true
      where: args.action in ["get", "list"]
`,
		References: []string{asi02},
		targets:    []target{{relevanceAll, []trait{dependsOnArgument}}},
	},
	{
		ID: "AT07", Name: "Cap evasion",
		Happens: "An agent that has reached a limit continues in a new session, or lets new agents do the rest. " +
			"Each of them stays below the limit; together they do not.",
		Stopped: "A limit for each principal applies to all its sessions, and counts the calls of agents for every principal in their chain. A second limit applies to the whole tenant.",
		Rule: `version: 1
name: AT07-cap-evasion
rules:
  - name: one-cap-for-all-sessions
    match: {category: [write, execute, destructive, financial]}
    rate_limit:
      - {max: 30, window: 60, per: [principal, server, tool]}
      - {max: 300, window: 60, per: [tenant, server, tool]}
`,
		References: []string{asi08, asi10},
		targets:    []target{{relevanceSome, []trait{hasCategory(write, execute)}}, {relevanceMuch, []trait{hasCategory(financial)}}},
	},
}
