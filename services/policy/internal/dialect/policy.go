package dialect

import (
	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// allTools is the name that means all tools in both formats.
const allTools = "*"

// A policy is the content of a source policy, in a form that does not depend on the source format.
type policy struct {
	source *strictyaml.Source
	// allows is true if tools that the policy does not list are allowed.
	allows bool
	hidden []tool
	listed []tool
	rules  []rule
}

// A tool is the name of a tool and its position in the source.
type tool struct{ at, name string }

// A kind is the effect of a rule in the source.
type kind int

const (
	// requires means that the call is denied unless all conditions are true.
	requires kind = iota
	// refuses means that the call is denied if all conditions are true, or if there are no conditions.
	refuses
	// unclear means that the rule can't be read, and that a problem was reported.
	unclear
)

// A rule is one rule of the source policy.
type rule struct {
	at string
	// tool is the name of a tool, or allTools.
	tool, name string
	kind       kind
	conditions []conditionForm
	// message is shown to the caller whose call is denied.
	message string
	limits  []limit
	// The field per lists the dimensions by which the limits are counted, as YAML.
	per string
}

// A limit allows at most max calls in any window. If max is less than 1, it allows no calls.
type limit struct {
	at     string
	max    int64
	window string
}

// windows maps each window name of the source formats to the window in a document.
var windows = map[string]string{"minute": "1m", "hour": "1h", "day": "1d"}

// A conditionForm is a condition in the YAML or JSON form that both formats have.
type conditionForm struct {
	Path  string    `yaml:"path"`
	Op    string    `yaml:"op"`
	Value yaml.Node `yaml:"value"`

	at string
}
