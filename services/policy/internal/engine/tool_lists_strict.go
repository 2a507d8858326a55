package engine

import "fmt"

// checkStrict adds a finding if a rule with Strict matches tools whose schemas can't be used to check arguments. The
// rule refuses all calls to these tools.
func (c *listChecker) checkStrict(r overlapRule) {
	if !r.Strict || c.Unusable == nil {
		return
	}
	var refused []string
	reason := ""
	for _, m := range c.matching(r.rule) {
		if why := c.unusableSchema(m); why != "" {
			refused = append(refused, m.String())
			if reason == "" {
				reason = m.String() + ": " + why
			}
		}
	}
	if len(refused) == 0 {
		return
	}
	suggestion := "let the server correct the schema, or remove forward: strict"
	if r.Tool == "" {
		suggestion = "let the server correct the schema, or let the rule match only other tools"
	}
	c.add(&r, "strict-schema", "forward", fmt.Sprintf("refuses every call of %s, because the accepted schema can't be used (%s)", firstNames(refused), reason), suggestion)
}

// unusableSchema returns the reason why the schema of a tool can't be used to check arguments. It returns "" if the
// schema can be used. Each schema is checked only once.
func (c *listChecker) unusableSchema(m matchedTool) string {
	why, known := c.unusable[m.String()]
	if !known && len(c.unusable) < maxStrictTools {
		why = c.Unusable(m.server, m.Name)
		c.unusable[m.String()] = why
	}
	return why
}
