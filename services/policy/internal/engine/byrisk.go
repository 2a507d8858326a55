package engine

import "time"

// byRiskName is how references name what `default: by_risk` does. No rule has such a
// name.
const byRiskName = "default:by_risk"

// byRiskKind is what `default: by_risk` does with a tool.
type byRiskKind uint8

const (
	askPeople byRiskKind = iota // the zero value
	allowFew
	allowSome
	allowFreely
	askWhat // it is not sure what the tool does
	kinds
)

// kindFor is what is recommended for a tool of that risk. Names and descriptions are the
// server's word, as annotations are: where nobody vouches for them nothing is allowed
// freely.
func kindFor(f *Facts) byRiskKind {
	switch {
	case !f.Sure && f.Risk != "" && f.Risk != "critical":
		return askWhat
	case f.Risk == "low" && f.Believed:
		return allowFreely
	case f.Risk == "low", f.Risk == "medium" && f.Believed:
		return allowSome
	case f.Risk == "high" && f.Believed:
		return allowFew
	default:
		return askPeople
	}
}

// doubt is what an explanation adds about a tool of which it is not sure what it does.
func doubt(f *Facts) string {
	if kindFor(f) != askWhat {
		return ""
	}
	return " It is not sure what the tool does, so a person is asked."
}

// byRisk are the rules that a document's `default: by_risk` stands for.
type byRisk [kinds]*rule

func newByRisk(d *Document) *byRisk {
	allow := func(limits ...RateLimit) Rule {
		return Rule{Action: ActionAllow, Limits: limits}
	}
	minutely := func(most int64) RateLimit {
		return RateLimit{Max: most, Window: time.Minute, Per: []Dimension{PerSession, PerServer, PerTool}}
	}
	out := new(byRisk)
	for kind, source := range [kinds]Rule{
		askPeople:   {Action: ActionRequireApproval, Reason: "by what is known of the tool, a wrong call can do much harm"},
		askWhat:     {Action: ActionRequireApproval, Reason: "the tool's definition leaves open what it does"},
		allowFew:    allow(minutely(10)),
		allowSome:   allow(minutely(30)),
		allowFreely: allow(),
	} {
		source.Name = byRiskName
		out[kind] = compileRule(d, &source, nil)
	}
	return out
}
