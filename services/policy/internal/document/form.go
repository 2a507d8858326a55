package document

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/observe"
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// A form is the YAML content of a document. A nil pointer means that the key is absent.
type form struct {
	Version *int             `yaml:"version"`
	Name    *string          `yaml:"name"`
	Server  *string          `yaml:"server"`
	Default *string          `yaml:"default"`
	Mode    string           `yaml:"mode"`
	Until   observe.Until    `yaml:"until"`
	Tools   map[string]terms `yaml:"tools"`
	Rules   []namedRule      `yaml:"rules"`
	Tests   []testForm       `yaml:"tests"`
}

type namedRule struct {
	Name  string `yaml:"name"`
	Match match  `yaml:"match"`
	terms `yaml:",inline"`
}

// A match is the YAML content of an [engine.Match].
type match struct {
	Method    strictyaml.OneOrMany[string] `yaml:"method"`
	Tool      strictyaml.OneOrMany[string] `yaml:"tool"`
	Prompt    strictyaml.OneOrMany[string] `yaml:"prompt"`
	URI       strictyaml.OneOrMany[string] `yaml:"uri"`
	Server    strictyaml.OneOrMany[string] `yaml:"server"`
	Agent     strictyaml.OneOrMany[string] `yaml:"agent"`
	Principal strictyaml.OneOrMany[string] `yaml:"principal"`
	Groups    strictyaml.OneOrMany[string] `yaml:"groups"`
	Tenant    strictyaml.OneOrMany[string] `yaml:"tenant"`

	Category    strictyaml.OneOrMany[string] `yaml:"category"`
	Risk        strictyaml.OneOrMany[string] `yaml:"risk"`
	Tags        strictyaml.OneOrMany[string] `yaml:"tags"`
	Annotations map[string]bool              `yaml:"annotations"`
}

// terms contains the keys that entries under `tools` and rules share.
type terms struct {
	Action    *string                         `yaml:"action"`
	Reason    string                          `yaml:"reason"`
	RateLimit strictyaml.OneOrMany[rateLimit] `yaml:"rate_limit"`
	Approvers strictyaml.OneOrMany[string]    `yaml:"approvers"`
	Quorum    *int                            `yaml:"quorum"`

	DecideWithin  *window `yaml:"decide_within"`
	ExecuteWithin *window `yaml:"execute_within"`
	SelfConfirm   bool    `yaml:"self_confirm"`
	Grant         *grant  `yaml:"grant"`
	ApproveWith   *stepUp `yaml:"approve_with"`
	Idempotent    bool    `yaml:"idempotent"`
	Timeout       *window `yaml:"timeout"`
	// Forward is "strict", or nil if the key is absent.
	Forward *string `yaml:"forward"`
	Redact  *redact `yaml:"redact"`
	Record  *record `yaml:"record"`

	NeedsScope strictyaml.OneOrMany[string] `yaml:"needs_scope"`

	When *string `yaml:"when"`
	// ExtraArgs is "allow", or nil if the key is absent.
	ExtraArgs *string `yaml:"extra_args"`
	Otherwise *terms  `yaml:"otherwise"`

	Mode  string        `yaml:"mode"`
	Until observe.Until `yaml:"until"`
}

type grant struct {
	Calls    *int64  `yaml:"calls"`
	Within   *window `yaml:"within"`
	Critical bool    `yaml:"critical"`
	Where    *string `yaml:"where"`
	// ExtraArgs is "allow", or nil if the key is absent.
	ExtraArgs *string `yaml:"extra_args"`
}

// A stepUp is the YAML content of an [engine.StepUp].
type stepUp struct {
	MaxAge *window                      `yaml:"max_age"`
	ACR    strictyaml.OneOrMany[string] `yaml:"acr"`
}

// A record specifies which parts of a call are stored in addition to the record in the journal.
type record struct {
	// Arguments must be "redacted".
	Arguments string `yaml:"arguments"`
}

// A redact specifies what to replace in results and arguments.
type redact struct {
	Results   *redactPart `yaml:"results"`
	Arguments *redactPart `yaml:"arguments"`
}

type redactPart struct {
	Paths  strictyaml.OneOrMany[string] `yaml:"paths"`
	Detect strictyaml.OneOrMany[string] `yaml:"detect"`
}

type rateLimit struct {
	Max    *int64   `yaml:"max"`
	Window *window  `yaml:"window"`
	Per    []string `yaml:"per"`
}

// A window is a duration. In YAML, it is a whole number of seconds, a duration in Go's syntax, or a whole number of
// days such as "7d".
type window time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (w *window) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		if d, ok := parseWindow(n); ok {
			*w = window(d)
			return nil
		}
	}
	return strictyaml.Problem{
		Message:    "wanted a number of seconds or a duration",
		Suggestion: "write it as 60, 90s, 15m, 1h or 7d",
	}
}

func parseWindow(n *yaml.Node) (time.Duration, bool) {
	number, err := strconv.ParseInt(strings.TrimSuffix(n.Value, "d"), 10, 64)
	decimal := err == nil && strconv.FormatInt(number, 10) == strings.TrimSuffix(n.Value, "d")
	switch {
	case n.ShortTag() == "!!int" && decimal:
		return saturate(number, time.Second), true
	case n.ShortTag() == "!!str" && decimal && strings.HasSuffix(n.Value, "d"):
		return saturate(number, 24*time.Hour), true
	case n.ShortTag() == "!!str":
		d, err := time.ParseDuration(n.Value)
		return d, err == nil
	default:
		return 0, false
	}
}

// saturate returns the given number of units as a duration. If the product would overflow, it returns a smaller
// duration, which is still longer than every allowed duration.
func saturate(number int64, unit time.Duration) time.Duration {
	most := int64(2 * engine.MaxWindow / unit)
	return time.Duration(min(max(number, -most), most)) * unit
}

// ExplainKey implements strictyaml.Explainer.
func (*form) ExplainKey(key string) (message, suggestion string, ok bool) {
	return explainDocumentKey(key)
}

// ExplainKey implements strictyaml.Explainer.
func (*namedRule) ExplainKey(key string) (message, suggestion string, ok bool) {
	if slices.Contains(matchKeys, key) {
		return fmt.Sprintf("unknown key %q", key), fmt.Sprintf("write it under match: match: {%s: …}", key), true
	}
	return explainRuleKey(key)
}

// ExplainKey implements strictyaml.Explainer.
func (*match) ExplainKey(key string) (message, suggestion string, ok bool) { return explainKey(key) }

// ExplainKey implements strictyaml.Explainer.
func (*rateLimit) ExplainKey(key string) (message, suggestion string, ok bool) {
	return explainKey(key)
}

// ExplainKey implements strictyaml.Explainer.
func (*terms) ExplainKey(key string) (message, suggestion string, ok bool) {
	if key == "match" || key == "name" || slices.Contains(matchKeys, key) {
		return fmt.Sprintf("an entry under tools has no %q", key), "an entry applies to the tool that it names; use rules for other conditions", true
	}
	return explainRuleKey(key)
}

// explainKey returns the message for a key in the policy language that this version does not support. It returns false
// for other keys.
func explainKey(key string) (message, suggestion string, ok bool) {
	return fmt.Sprintf("%q is not supported by this version", key), "remove it", slices.Contains(notSupported, key)
}

// notSupported contains the keys in the policy language that this version does not support anywhere.
var notSupported = []string{
	"on_limiter_error",                                                // keys of rules
	"algorithm", "burst", "max_in_flight", "cost", "settle", "repeat", // keys of limits
}
