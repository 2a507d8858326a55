package classify

import (
	"slices"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// riskOf contains the risk of tools in each category if nothing raises the risk.
var riskOf = map[mcpv1.Category]policyv1.Risk{
	read: policyv1.Risk_RISK_LOW, write: policyv1.Risk_RISK_MEDIUM, execute: policyv1.Risk_RISK_HIGH,
	destructive: policyv1.Risk_RISK_CRITICAL, financial: policyv1.Risk_RISK_CRITICAL,
}

// These are the tags of dishonest definitions. Such a definition instructs the model or contains hidden text.
const (
	tagSpeaks = "speaks-to-the-model"
	tagHidden = "hidden-text"
)

// risk returns the risk of the tool. If the definition is dishonest, the risk is critical. Otherwise it is the usual
// risk of the category. It is one level higher if the tool can return secrets, if a call can affect many things, or if
// a tool that writes has the annotation destructiveHint.
func (c *finding) risk(of *policyv1.Classification) policyv1.Risk {
	if slices.ContainsFunc(of.GetTags(), func(tag string) bool { return tag == tagSpeaks || tag == tagHidden }) {
		return policyv1.Risk_RISK_CRITICAL
	}
	risk := riskOf[of.GetCategory()]
	raised := of.GetSensitivity() == policyv1.Axis_AXIS_HIGH ||
		of.GetCategory() != read && of.GetBlastRadius() == policyv1.Axis_AXIS_HIGH ||
		of.GetCategory() == write && c.tool.Hints["destructiveHint"]
	if raised {
		return min(risk+1, policyv1.Risk_RISK_CRITICAL)
	}
	return risk
}

var (
	secrets = set("secret secrets credential credentials password passwords passphrase apikey keychain vault privatekey mnemonic kubeconfig")
	private = set(`email emails mail mails inbox message messages conversation conversations transcript customer customers contact contacts
		employee employees payroll salary patient medical invoice invoices payment payments bank card personal export dump backup log logs file files
		environment env token tokens history`)
	outside = set("web internet website url urls uri email webhook http https recipient slack sms tweet")
	much    = set("all every everything entire bulk batch recursive recursively many multiple wildcard cascade")
	sends   = set("send post publish reply email message notify broadcast tweet comment")
)

// sensitivity rates how confidential the tool's results can be.
func (c *finding) sensitivity() policyv1.Axis {
	words := slices.Concat(c.name, c.sentence())
	switch {
	case containsNear(words, len(words), secrets), hasKey(c.name), hasKey(c.sentence()):
		return policyv1.Axis_AXIS_HIGH
	case containsNear(words, len(words), private):
		return policyv1.Axis_AXIS_MEDIUM
	default:
		return policyv1.Axis_AXIS_LOW
	}
}

// hasKey reports whether the words contain the name of an access key, for example "API key".
func hasKey(words []word) bool {
	for i, w := range words {
		if i > 0 && (w.text == "key" || w.text == "keys") && opensWith[words[i-1].text] {
			return true
		}
	}
	return false
}

var opensWith = set("api private access secret ssh signing encryption master")

// openWorld rates how likely it is that the tool accesses systems beyond its server, for example the internet.
func (c *finding) openWorld() policyv1.Axis {
	hint, hinted := c.tool.Hints["openWorldHint"]
	for _, p := range c.tool.Parameters {
		if containsNear(nameWords(p.Name), 8, outside) {
			return policyv1.Axis_AXIS_HIGH
		}
	}
	switch {
	case hint, containsNear(c.sentence(), maxWords, outside):
		return policyv1.Axis_AXIS_HIGH
	case hinted && c.trusted:
		return policyv1.Axis_AXIS_LOW
	default:
		return policyv1.Axis_AXIS_MEDIUM
	}
}

// irreversibility rates how hard it is to undo the tool's action.
func (c *finding) irreversibility(category mcpv1.Category) policyv1.Axis {
	switch {
	case category == read:
		return policyv1.Axis_AXIS_LOW
	case category == destructive, category == financial:
		return policyv1.Axis_AXIS_HIGH
	case category == execute, containsNear(c.name, len(c.name), sends):
		return policyv1.Axis_AXIS_MEDIUM
	default:
		return policyv1.Axis_AXIS_LOW
	}
}

// blastRadius rates how much a single call can affect.
func (c *finding) blastRadius() policyv1.Axis {
	if containsNear(c.name, len(c.name), much) {
		return policyv1.Axis_AXIS_HIGH
	}
	for _, p := range c.tool.Parameters {
		if containsNear(nameWords(p.Name), 8, much) && slices.Contains(p.Types, "boolean") {
			return policyv1.Axis_AXIS_HIGH
		}
	}
	for _, p := range c.tool.Parameters {
		if slices.Contains(p.Types, "array") {
			return policyv1.Axis_AXIS_MEDIUM
		}
	}
	return policyv1.Axis_AXIS_LOW
}

// tags returns the tags of the tool, and adds evidence for the tags.
func (c *finding) tags() []string {
	var out []string
	if c.hasSteeringText() {
		out = append(out, tagSpeaks)
	}
	if c.hasHiddenText() {
		out = append(out, tagHidden)
	}
	if c.dependsOn != "" {
		out = append(out, "depends-on-argument")
	}
	return out
}
