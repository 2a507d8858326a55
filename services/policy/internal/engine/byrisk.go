package engine

import "time"

// byRiskName is the name in a [RuleRef] for `default: by_risk`. No rule of a document can have this name.
const byRiskName = "default:by_risk"

// byRiskOutcome is an outcome of `default: by_risk`.
type byRiskKind uint8

const (
	askPeople byRiskKind = iota // requires approval
	allowFew                    // allows 10 calls a minute
	allowSome                   // allows 30 calls a minute
	allowFreely
	askWhat // requires approval because the class is uncertain
	kinds
)

// outcomeFor returns the outcome for a tool. Unless the classification is confirmed, it rests on names and descriptions
// that the server chose, so no call is allowed without a limit.
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

// uncertaintyNote returns a sentence that an explanation adds if the class of the tool is uncertain; otherwise "".
func doubt(f *Facts) string {
	if kindFor(f) != askWhat {
		return ""
	}
	return " The tool's class is uncertain, so an approval is required."
}

// byRisk has the rules that implement a document's `default: by_risk`, by outcome.
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
		askPeople:   {Action: ActionRequireApproval, Reason: "a wrong call of this tool can do much harm"},
		askWhat:     {Action: ActionRequireApproval, Reason: "the tool's definition does not show clearly what the tool does"},
		allowFew:    allow(minutely(10)),
		allowSome:   allow(minutely(30)),
		allowFreely: allow(),
	} {
		source.Name = byRiskName
		out[kind] = compileRule(d, &source, nil)
	}
	return out
}
