// Package advice describes why a tool needs a policy, which attacks can exploit the tool, and which rule is
// recommended. The advice depends only on the classification of the tool and on the names of the tool and its server.
// The policy service shows the advice to operators.
//
// The package also contains the attack catalog, which describes attacks and the rules that stop them. The files in
// testdata test each rule against its attack.
package advice

import policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"

const maxAttacks = 6

// For returns the advice for a tool with the classification c. If c is nil or has no category, the tool is
// unclassified. The advice lists at most six attacks, most relevant first. A server's name must match
// `^[a-z0-9-]{1,32}$`, and a tool's name must match `^[A-Za-z0-9_./-]{1,128}$`. If a name does not match, no document
// can contain it, and the recommended rule is empty.
func For(server, tool string, c *policyv1.Classification) *policyv1.Advice {
	return &policyv1.Advice{Why: whyText(c), Attacks: attacksOn(c), RecommendedRule: document(server, tool, c)}
}
