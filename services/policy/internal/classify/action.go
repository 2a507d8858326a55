package classify

import (
	"fmt"
	"slices"
	"strings"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// byActions adds evidence from a parameter that selects the tool's action, such as "action". Only the strictest value
// of the parameter counts.
func (c *finding) byActions() {
	for _, p := range c.choices() {
		if !actionParameters[plain(strings.ToLower(p.Name))] || len(p.Values) < 2 || c.describesRequest(p) {
			continue
		}
		known := 0
		if p.Cut {
			c.add(&policyv1.Evidence{
				Path: p.Path, InKey: true, Quote: p.Name, Category: execute, Weight: 0.45,
				Meaning: fmt.Sprintf("what it does depends on this argument, of whose values the first %d were looked at", maxValues),
			})
		}
		furthest := foundVerb{}
		for _, value := range p.Values {
			s, ok := actionOf(value)
			if !ok {
				continue
			}
			if value == "remove" && slices.Contains(p.Values, "add") && containsNear(c.name, len(c.name), grantWords) { // here "remove" undoes "add"
				s.category = write
			}
			known++
			if s.category > furthest.category || s.category == furthest.category && furthest.weak && !s.weak {
				furthest = s
			}
		}
		if furthest.weak && c.readsByNameAndText() || 2*known < len(p.Values) && (furthest.weak || furthest.category < destructive || c.readsByNameAndText()) { // the values may be search terms
			continue
		}
		weight := 0.8
		if furthest.weak {
			weight = weightMiddle
		}
		if p.Path == rootPath+"/properties"+pointer(p.Name) {
			c.dependsOn = pointer(p.Name)
		}
		c.add(&policyv1.Evidence{
			Path: p.Path, InKey: true, Quote: p.Name, Category: furthest.category, Weight: weight,
			Meaning: fmt.Sprintf("what it does depends on this argument, and %q is the furthest of what it may be", furthest.raw),
		})
		return
	}
}

var actionParameters = set(`action operation op command method actiontype action_type mode
	accion acao azione aktion operacion operacao operazione действие операция 操作 动作 動作 アクション 작업 동작`)

// choices returns all parameters. If several alternatives in a schema have a parameter with the same name, the value of
// the parameter selects the alternative. choices joins such parameters into one.
func (c *finding) choices() []Parameter {
	var out []Parameter
	joined := make(map[string]int)
	for _, p := range slices.Concat(c.tool.Parameters, c.tool.Nested) {
		parts := alternative().FindStringSubmatch(p.Path)
		if parts == nil {
			out = append(out, p)
			continue
		}
		key := parts[1] + pointer(p.Name)
		if i, seen := joined[key]; seen {
			out[i].Values = append(slices.Clip(out[i].Values), p.Values...)
			out[i].Cut = out[i].Cut || p.Cut
			continue
		}
		joined[key] = len(out)
		out = append(out, p)
	}
	return out
}

// alternative matches the path of a parameter in an alternative of a schema.
var alternative = compiled(`^(.*/(?:anyOf|oneOf))/[0-9]+/properties/[^/]+$`)

// describesRequest is called for a parameter whose values are HTTP methods. It reports whether the parameter is a
// property of a stored thing, such as a firewall rule, and not the method of a request that the tool sends.
func (c *finding) describesRequest(p Parameter) bool {
	isMethod := func(value string) bool { return httpMethods[strings.ToUpper(value)] }
	return c.leadCategory() == write && (keepVerbs[verbText(c.inName)] || keepVerbs[verbText(c.inText)]) && !slices.ContainsFunc(p.Values, func(v string) bool { return !isMethod(v) })
}

// actionOf returns the verb in a parameter value such as "delete" or "file_delete".
func actionOf(value string) (foundVerb, bool) {
	words := nameWords(value)
	best, ok := foundVerb{}, false
	for i, w := range words {
		base := w.text
		s, is := verbs[base]
		if !is {
			if base, is = translateWord(base); !is {
				continue
			}
			s = verbs[base]
		}
		s = inContext(base, s, words[i+1:])
		if !ok || best.weak && !s.weak {
			best, ok = foundVerb{word: word{text: w.text, raw: value}, base: base, sense: s}, true
		}
	}
	return best, ok
}

// pointer returns a slash and the key, escaped as a reference token of a JSON Pointer (RFC 6901, section 3).
func pointer(key string) string {
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
