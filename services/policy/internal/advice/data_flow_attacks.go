package advice

// dataFlowAttacks contains the attacks that use the arguments or the results of calls.
var dataFlowAttacks = []Entry{
	{
		ID: "AT08", Name: "Exfiltration through arguments",
		Happens: "An agent that has read something confidential puts it into the arguments of a call that goes outside: the text of a message, an address to be fetched. " +
			"The call looks like work, and the data has left.",
		Stopped: "A person decides on calls that reach outside. One approval covers later calls only to addresses that a condition names.",
		Rule: `version: 1
name: AT08-exfiltration-through-arguments
rules:
  - name: messages-stay-inside
    match: {category: [write, execute], annotations: {openWorldHint: true}}
    action: require_approval
    reason: what it is given goes outside
    grant:
      calls: 20
      within: 1h
      where: >-
        size(args.to) > 0 && args.to[0] != "" && args.to.all(x, email.domain(x) == "example.com")
        && args.all(k, k in ["to", "subject", "body"])
  - name: known-sites-only
    match: {tool: "fetch*"}
    action: require_approval
    reason: an address can carry what was read before
    grant:
      calls: 100
      within: 8h
      where: url.under(args.url, "https://docs.example.com/") && args.all(k, k in ["url"])
`,
		References: []string{mcp06, asi01, asi02},
		targets: []target{
			{relevanceSome, []trait{hasCategory(write), isRaised(openWorld)}},
			{relevanceMuch, []trait{hasCategory(execute), isRaised(openWorld)}},
			{relevanceMuch, []trait{hasCategory(read), isHigh(openWorld)}},
			{relevanceAll, []trait{hasCategory(write), isHigh(openWorld)}},
		},
	},
	{
		ID: "AT09", Name: "Exfiltration through results",
		Happens: "A call that only reads hands out more than the task needs: passwords and keys, or, call by call, a whole archive. " +
			"Everything that was returned is in the model's context and may be passed on.",
		Stopped: "A person decides on reads that may hand out secrets, and a daily limit stops a caller that reads everything.",
		Rule: `version: 1
name: AT09-exfiltration-through-results
rules:
  - name: people-decide-on-secrets
    match: {category: read, risk: [medium, high, critical]}
    action: require_approval
    reason: secrets may come back
  - name: so-much-in-a-day
    match: {category: read}
    rate_limit: {max: 500, window: 1d, per: [principal, server]}
`,
		References: []string{mcp01, mcp10, asi02},
		targets: []target{
			{relevanceSome, []trait{hasCategory(execute)}},
			{relevanceMuch, []trait{hasCategory(read), isRaised(sensitivity)}},
			{relevanceMuch, []trait{hasCategory(read), isHigh(blastRadius)}},
			{relevanceAll, []trait{isHigh(sensitivity)}},
		},
	},
	{
		ID: "AT10", Name: "Injection into code",
		Happens: "A text from an untrusted author becomes part of what is run: a command of a shell, a script, a query in SQL. " +
			"After a semicolon comes the author's own program, which runs with the rights of the server.",
		Stopped: "A person reads what is to be run. One approval covers later calls only if they run exactly what a condition names.",
		Rule: `version: 1
name: AT10-injection-into-code
rules:
  - name: people-read-what-runs
    match: {category: execute}
    action: require_approval
    reason: it runs what it is given
    grant:
      calls: 50
      within: 1h
      where: args.command in ["make lint", "make test"] && args.all(k, k in ["command"])
`,
		References: []string{mcp05, asi05},
		targets:    []target{{relevanceAll, []trait{hasCategory(execute)}}},
	},
	{
		ID: "AT11", Name: "Indirect prompt injection",
		Happens: "A tool returns text of untrusted authors: a web page, a mail, a comment. It contains instructions, the model takes them for its task, " +
			"and the next call does what the author wants.",
		Stopped: "An agent that reads untrusted texts may change nothing, and no other agent can do it instead: the calls of agents that it makes are also decided as its own.",
		Rule: `version: 1
name: AT11-indirect-prompt-injection
rules:
  - name: who-reads-strangers-changes-nothing
    match: {agent: "reader-*", category: [write, execute, destructive, financial]}
    action: deny
    reason: agents that read strangers' texts change nothing; hand over to another one
`,
		References: []string{mcp06, asi01},
		targets: []target{
			{relevanceSome, []trait{hasCategory(read)}},
			{relevanceMuch, []trait{hasCategory(read), isRaised(openWorld), isRaised(sensitivity)}},
			{relevanceMuch, []trait{hasCategory(execute), isHigh(openWorld)}},
			{relevanceAll, []trait{hasCategory(read), isHigh(openWorld)}},
		},
	},
	{
		ID: "AT12", Name: "Planted instructions",
		Happens: "An agent that was misled keeps a text that misleads others: in its memory, in a ticket, in a shared page. " +
			"Days later another agent, with other rights, reads it and obeys.",
		Stopped: "A person reads what is to be kept where agents look for instructions.",
		Rule: `version: 1
name: AT12-planted-instructions
rules:
  - name: people-read-what-is-kept
    match: {server: [memory, "memory-*"], category: [write, execute]}
    action: require_approval
    reason: what is kept here steers agents later
`,
		References: []string{mcp10, asi06},
		targets:    []target{{relevanceMuch, []trait{hasCategory(write)}}},
	},
}
