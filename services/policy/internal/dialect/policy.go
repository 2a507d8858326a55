package dialect

import (
	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// allTools is the name that stands for all tools in both formats.
const allTools = "*"

// A policy is the content of a source, which both formats have in common.
type policy struct {
	source *strictyaml.Source
	// allows reports whether tools that are not listed are allowed.
	allows bool
	hidden []tool
	listed []tool
	rules  []rule
}

// A tool is the name of a tool, and its place in the source.
type tool struct{ at, name string }

// A kind is the effect of a rule of the source.
type kind int

const (
	// requires means that the call is denied unless all conditions hold.
	requires kind = iota
	// refuses means that the call is denied if all conditions hold, or there are none.
	refuses
	// unclear means that the rule can't be read. A problem was reported.
	unclear
)

// A rule is a rule of the source.
type rule struct {
	at string
	// tool is the name of a tool, or allTools.
	tool, name string
	kind       kind
	conditions []conditionForm
	// message is the text for the caller whose call is denied.
	message string
	limits  []limit
	// per lists the dimensions of the limits.
	per string
}

// A limit allows at most max calls in any window. If max is less than 1, it allows none.
type limit struct {
	at     string
	max    int64
	window string
}

// windows maps the windows of the formats to those of documents.
var windows = map[string]string{"minute": "1m", "hour": "1h", "day": "1d"}

// A conditionForm is a condition in the YAML or JSON form that both formats have.
type conditionForm struct {
	Path  string    `yaml:"path"`
	Op    string    `yaml:"op"`
	Value yaml.Node `yaml:"value"`

	at string
}
