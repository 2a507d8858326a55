package advice

// definitionAttacks contains the attacks in which a server abuses the definitions of its tools.
var definitionAttacks = []Entry{
	{
		ID: "AT13", Name: "Poisoned definition",
		Happens: "The definition of a tool speaks to the model instead of describing the tool, often in invisible characters: read this file first, do not tell the user. " +
			"It works as soon as the tool is listed, before any call.",
		Stopped: "Tools with such a definition are hidden: no model reads them, and no caller can call them. Only wording that the catalog knows is found, so read other definitions too.",
		Rule: `version: 1
name: AT13-poisoned-definition
rules:
  - name: nothing-that-speaks-to-the-model
    match: {tags: [speaks-to-the-model, hidden-text]}
    action: hide
`,
		References: []string{mcp03, asi01, asi04},
		targets:    []target{{relevanceSeen, []trait{hasTag(tagSpeaks, tagHidden)}}},
	},
	{
		ID: "AT14", Name: "Changed definition",
		Happens: "A server is harmless until people trust it. Then it changes what a tool says or takes, and what was approved for the old tool is used by the new one. " +
			"This is also called a rug pull.",
		Stopped:    "No rule is needed: the catalog pins the definitions that were accepted. A tool with another definition is not listed and can't be called until a person has accepted the change, unless pinning is off for the server.",
		References: []string{mcp03, mcp04, asi04},
		targets:    []target{{relevanceSome, nil}},
	},
	{
		ID: "AT15", Name: "Look-alike tool",
		Happens: "A second server offers a tool with the name of a known one, or almost that name. The model calls the wrong one and hands it what was meant for the other.",
		Stopped: "Tools are allowed by their exact names, each on its own server, and everything else is denied. Two tools of one name on one server are stopped by the catalog.",
		Rule: `version: 1
name: AT15-look-alike-tool
default: deny
rules:
  - name: mail-is-the-mail-servers
    match: {server: mail, tool: [list_mail, send_mail]}
    action: allow
`,
		References: []string{mcp03, asi04},
		targets:    []target{{relevanceSome, nil}},
	},
	{
		ID: "AT16", Name: "Understated definition",
		Happens: "A definition makes its tool look more harmless than it is, or does not show what the tool does. For example, the tool claims to read, but it deletes. " +
			"A policy that relies on the definition allows the calls.",
		Stopped: "With the default by_risk, a definition alone never allows unlimited calls: tools that claim to read are limited, and other tools require approval, " +
			"until the server is trusted or a person has accepted the definition. A tool with a convincing false definition is slowed down, but not detected.",
		Rule: `version: 1
name: AT16-understated-definition
default: by_risk
`,
		References: []string{mcp03, asi04},
		targets:    []target{{relevanceSome, []trait{hasCategory(read)}}, {relevanceSeen, []trait{isUncertain}}},
	},
}
