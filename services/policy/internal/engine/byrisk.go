package engine

import "time"

// byRiskName is the rule's name in references to `default: by_risk`. No rule can have this name.
const byRiskName = "default:by_risk"

// byRiskKind is one of the outcomes of `default: by_risk`.
type byRiskKind uint8

const (
	askPeople byRiskKind = iota // the zero value
	allowFew
	allowSome
	allowFreely
	askWhat // the class is uncertain
	kinds
)

// kindFor returns the outcome for a tool. Names and descriptions are only the server's statements, as annotations are,
// so nothing is allowed without a limit of its own unless the classification is confirmed.
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

// doubt returns what an explanation adds about a tool with an uncertain class.
func doubt(f *Facts) string {
	if kindFor(f) != askWhat {
		return ""
	}
	return " It is not sure what the tool does, so a person is asked."
}

// byRisk are the rules that a document's `default: by_risk` stands for, by kind.
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
