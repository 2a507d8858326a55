package dialect

import (
	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// allTools is the name that means all tools in both formats.
const allTools = "*"

// A policy is the content of a source policy, independent of its format.
type policy struct {
	source *strictyaml.Source
	// allows is true if tools that the policy does not list are allowed.
	allows bool
	hidden []tool
	listed []tool
	rules  []rule
}

// A tool is the name of a tool, and the position of the name in the source.
type tool struct{ at, name string }

// A kind is the effect of a rule in the source.
type kind int

const (
	// requires means that a call is denied unless all conditions are true.
	requires kind = iota
	// refuses means that a call is denied if all conditions are true, or if there are no conditions.
	refuses
	// unclear means that the rule can't be read, and that a problem was reported.
	unclear
)

// A rule is one rule in the source policy.
type rule struct {
	at string
	// tool is the name of a tool, or allTools.
	tool, name string
	kind       kind
	conditions []conditionForm
	// message is shown to the caller if the rule denies a call.
	message string
	limits  []limit
	// per is the YAML list of the dimensions by which the limits count calls separately.
	per string
}

// A limit allows at most max calls in a time window. If max is less than 1, the limit allows no calls.
type limit struct {
	at     string
	max    int64
	window string
}

// windows contains the windows in policy documents, by their names in the source formats.
var windows = map[string]string{"minute": "1m", "hour": "1h", "day": "1d"}

// A conditionForm is a condition in either source format.
type conditionForm struct {
	Path  string    `yaml:"path"`
	Op    string    `yaml:"op"`
	Value yaml.Node `yaml:"value"`

	at string
}
