// Package advice explains what to know about a tool and how to protect it: why it needs a policy, which attacks
// exploit such access, and which rule is recommended. The policy service uses it. It depends only on the tool's
// classification.
//
// It also has the attack catalog: what happens in each attack, and the rule that stops it. The stories in testdata
// test each rule against its attack.
package advice

import policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"

// mostAttacks bounds the number of attacks in the advice on one tool.
const mostAttacks = 6

// For returns the advice on a tool of a server with the classification c. If c is nil or has no category, nothing is
// known of the tool. Attacks has at most six attacks, the most relevant first. The recommended rule is empty if a
// document can't name the server or the tool: names are `^[a-z0-9-]{1,32}$` and `^[A-Za-z0-9_./-]{1,128}$`.
func For(server, tool string, c *policyv1.Classification) *policyv1.Advice {
	return &policyv1.Advice{Why: why(c), Attacks: exploiting(c), RecommendedRule: document(server, tool, c)}
}
