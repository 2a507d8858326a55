package document

import (
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// A testForm is the YAML content of a [Test].
type testForm struct {
	Name   string      `yaml:"name"`
	Call   testCall    `yaml:"call"`
	Caller *testCaller `yaml:"caller"`
	Tool   *testTool   `yaml:"tool"`
	Now    *moment     `yaml:"now"`
	Want   testWant    `yaml:"want"`
}

type testCall struct {
	Server string `yaml:"server"`
	Method string `yaml:"method"`
	Tool   string `yaml:"tool"`
	Prompt string `yaml:"prompt"`
	URI    string `yaml:"uri"`
	// Args is converted from YAML later, because its numbers must not be rounded.
	Args *yaml.Node `yaml:"args"`
}

type testCaller struct {
	testPrincipal `yaml:",inline"`
	Chain         []testPrincipal `yaml:"chain"`
}

type testPrincipal struct {
	Subject *string                      `yaml:"subject"`
	Agent   *string                      `yaml:"agent"`
	Tenant  *string                      `yaml:"tenant"`
	Groups  strictyaml.OneOrMany[string] `yaml:"groups"`
	Issuer  string                       `yaml:"issuer"`
	Client  string                       `yaml:"client"`
	Scopes  strictyaml.OneOrMany[string] `yaml:"scopes"`
}

type testTool struct {
	Category    string                       `yaml:"category"`
	Risk        string                       `yaml:"risk"`
	Tags        strictyaml.OneOrMany[string] `yaml:"tags"`
	Annotations map[string]bool              `yaml:"annotations"`
	Trusted     bool                         `yaml:"trusted"`
	Arguments   []string                     `yaml:"arguments"`
	// Schema is converted from YAML later, because its numbers must not be rounded.
	Schema *yaml.Node `yaml:"schema"`
}

type testWant struct {
	Action string  `yaml:"action"`
	Rule   string  `yaml:"rule"`
	Code   string  `yaml:"code"`
	Reason *string `yaml:"reason"`
}

// A moment is a time. In YAML, it is an RFC 3339 time or a date. A date means midnight UTC on that date.
type moment time.Time

// UnmarshalYAML implements yaml.Unmarshaler.
func (m *moment) UnmarshalYAML(n *yaml.Node) error {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, n.Value); err == nil && n.Kind == yaml.ScalarNode {
			*m = moment(t)
			return nil
		}
	}
	return strictyaml.Problem{
		Message: "wanted a time or a date", Suggestion: "write it as 2026-12-01T09:30:00Z or 2026-12-01",
	}
}

// ExplainKey implements strictyaml.Explainer.
func (*testForm) ExplainKey(key string) (message, suggestion string, ok bool) {
	switch key {
	case "args", "server", "method", "prompt", "uri":
		return "a test has no key \"" + key + "\"", "put it under call", true
	case "action", "rule", "code", "reason":
		return "a test has no key \"" + key + "\"", "put it under want", true
	}
	return "", "", false
}
