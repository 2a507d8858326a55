// Package advice says what to know and to do about a tool beside what it is held to be: why it
// needs a policy, which attacks exploit such access, and which rule is recommended. It reads a
// classification and nothing else, and answers the same for the same one.
//
// It holds the attack catalogue, too: what happens in each attack, and the rule that stops it.
// Each rule is tried against its attack by the stories in testdata.
package advice

import policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"

// mostAttacks bounds how many attacks the advice on one tool names.
const mostAttacks = 6

// For is the advice on a tool of a server that is held to be c. A nil c, as one without a
// category, stands for a tool of which nothing is known. Its attacks are the most relevant
// ones, these first, and at most six. The recommended rule is empty where no document can name
// the server or the tool: names are `^[a-z0-9-]{1,32}$` and `^[A-Za-z0-9_./-]{1,128}$`.
func For(server, tool string, c *policyv1.Classification) *policyv1.Advice {
	return &policyv1.Advice{Why: why(c), Attacks: exploiting(c), RecommendedRule: document(server, tool, c)}
}
