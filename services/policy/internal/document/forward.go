package document

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/inputschema"
)

// forward sets the fields of a rule for the keys timeout and forward.
func (r *reader) forward(at string, t *terms, rule *engine.Rule) {
	if t.Timeout != nil {
		rule.Timeout = time.Duration(*t.Timeout)
		if rule.Timeout == 0 { // the engine would treat 0 as no timeout
			r.add(at+".timeout", "is not between 1ms and 1h", "")
		}
	}
	if t.Forward == nil {
		return
	}
	if rule.Strict = true; *t.Forward != "strict" {
		r.add(at+".forward", fmt.Sprintf("unknown value %q", *t.Forward), "write strict, or remove it")
	}
}

// testSchema returns a function that checks whether the arguments in a test's call are valid under the schema in the
// test. If the test has no schema, all arguments are valid. The parameter t may be nil.
func (r *reader) testSchema(at string, t *testTool) func(params string) error {
	if t == nil || t.Schema == nil {
		return func(string) error { return nil }
	}
	if t.Schema.Kind != yaml.MappingNode {
		r.add(at, "wanted a mapping", "write the tool's inputSchema, for example schema: {type: object, properties: {amount: {type: number}}}")
		return nil
	}
	var definition bytes.Buffer
	enc := jsontext.NewEncoder(&definition)
	for _, token := range []jsontext.Token{jsontext.BeginObject, jsontext.String("inputSchema")} {
		_ = enc.WriteToken(token) // writing to a buffer never fails
	}
	r.writeJSON(enc, at, t.Schema)
	_ = enc.WriteToken(jsontext.EndObject)
	schema, err := inputschema.Compile(definition.String())
	if unusable, ok := errors.AsType[*inputschema.UnusableError](err); ok {
		r.add(at, "can't be used as an input schema: "+unusable.Reason, "copy the inputSchema of the tool's definition")
		return nil
	}
	return schema.Check
}
