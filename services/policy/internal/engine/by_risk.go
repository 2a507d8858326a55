package engine

import "time"

// byRiskName is the name of the rule in a [RuleRef] for `default: by_risk`. No rule in a document can have this name.
const byRiskName = "default:by_risk"

// byRiskOutcome is one of the possible outcomes of `default: by_risk`.
type byRiskOutcome uint8

const (
	approvalForRisk byRiskOutcome = iota // requires approval because of the risk
	allow10                              // allows 10 calls a minute
	allow30                              // allows 30 calls a minute
	allowFreely
	approvalForUncertainty // requires approval because the class is uncertain
	byRiskOutcomes
)

// outcomeFor returns the outcome of `default: by_risk` for a tool. If the classification is not confirmed, calls are
// allowed only with a limit. The reason is that the server chose the names and descriptions from which the
// classification was derived.
func outcomeFor(f *Facts) byRiskOutcome {
	switch {
	case !f.Sure && f.Risk != "" && f.Risk != "critical":
		return approvalForUncertainty
	case f.Risk == "low" && f.Believed:
		return allowFreely
	case f.Risk == "low", f.Risk == "medium" && f.Believed:
		return allow30
	case f.Risk == "high" && f.Believed:
		return allow10
	default:
		return approvalForRisk
	}
}

// uncertaintyNote returns a sentence for an explanation if the tool's classification is uncertain, and otherwise "".
func uncertaintyNote(f *Facts) string {
	if outcomeFor(f) != approvalForUncertainty {
		return ""
	}
	return " The tool's class is uncertain, so an approval is required."
}

// byRisk contains the rules that implement the `default: by_risk` of a document, by outcome.
type byRisk [byRiskOutcomes]*rule

func newByRisk(d *Document) *byRisk {
	allow := func(limits ...RateLimit) Rule {
		return Rule{Action: ActionAllow, Limits: limits}
	}
	minutely := func(most int64) RateLimit {
		return RateLimit{Max: most, Window: time.Minute, Per: []Dimension{PerSession, PerServer, PerTool}}
	}
	out := new(byRisk)
	for kind, source := range [byRiskOutcomes]Rule{
		approvalForRisk:        {Action: ActionRequireApproval, Reason: "a wrong call of this tool can do much harm"},
		approvalForUncertainty: {Action: ActionRequireApproval, Reason: "the tool's definition does not show clearly what the tool does"},
		allow10:                allow(minutely(10)),
		allow30:                allow(minutely(30)),
		allowFreely:            allow(),
	} {
		source.Name = byRiskName
		out[kind] = compileRule(d, &source, nil)
	}
	return out
}
