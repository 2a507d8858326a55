// Package advice describes why a tool needs a policy, which attacks can exploit the tool, and which rule is
// recommended. The advice depends only on the tool's names and its classification. The policy service uses the package.
//
// The package also contains the attack catalog, which describes attacks and contains the rules that stop them. The
// files in testdata test each rule against its attack.
package advice

import policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"

const maxAttacks = 6

// For returns the advice on a tool of a server with the classification c. If c is nil or has no category, the tool is
// unclassified. The advice has at most six attacks, the most relevant first. The recommended rule is empty if the
// server's name does not match `^[a-z0-9-]{1,32}$` or the tool's name does not match `^[A-Za-z0-9_./-]{1,128}$`,
// because a document can't name them.
func For(server, tool string, c *policyv1.Classification) *policyv1.Advice {
	return &policyv1.Advice{Why: whyText(c), Attacks: attacksOn(c), RecommendedRule: document(server, tool, c)}
}
