package inputschema

import (
	"bytes"
	"errors"
	"fmt"
	"regexp/syntax"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// MaxDefinitionBytes limits the length in bytes of a tool definition whose schema is compiled.
	MaxDefinitionBytes = 256 << 10
	// maxSchemaValues limits the total number of values and names in a schema.
	maxSchemaValues = 20_000
	// maxSubschemas limits the number of subschemas in a schema, which are its objects and booleans. The time to compile a
	// schema grows with the square of this number.
	maxSubschemas = 4_000
)

// A Schema is the compiled input schema of a tool. It is immutable and safe for concurrent use.
type Schema struct {
	root *node
	// tracksItems is true if the schema contains the keyword unevaluatedItems.
	tracksItems bool
	size        int
}

// Size returns the approximate size of the schema in memory, in bytes.
func (s *Schema) Size() int { return s.size }

// An UnusableError is the reason why arguments can't be checked against a tool's input schema.
type UnusableError struct{ Reason string }

// Error implements error.
func (e *UnusableError) Error() string {
	return "the tool's input schema can't be used: " + e.Reason + "; until the server changes it, an operator can only allow the tool without forward: strict"
}

func unusable(format string, args ...any) error {
	return &UnusableError{Reason: fmt.Sprintf(format, args...)}
}

// Compile compiles the input schema in a tool definition. Its errors are of type [UnusableError].
func Compile(definition string) (*Schema, error) {
	if len(definition) > MaxDefinitionBytes {
		return nil, unusable("the definition has more than %d bytes", MaxDefinitionBytes)
	}
	var tool struct {
		InputSchema jsontext.Value `json:"inputSchema"`
	}
	if err := json.Unmarshal([]byte(definition), &tool); err != nil {
		return nil, unusable("the definition can't be read")
	}
	if len(tool.InputSchema) == 0 {
		return nil, unusable("the definition has none")
	}
	text, err := parse(tool.InputSchema, maxSchemaValues)
	switch {
	case errors.Is(err, errTooManyValues), err == nil && text.subschemas() > maxSubschemas:
		return nil, unusable("it has too many parts")
	case err != nil:
		return nil, unusable("%v", err)
	case text.kind != kindObject:
		return nil, unusable("it is not an object")
	}
	patterns := new(patternCompiler)
	compiled, err := compileDraft(tool.InputSchema, jsonschema.Draft2020, patterns)
	if _, invalid := errors.AsType[*jsonschema.SchemaValidationError](err); invalid && text.find("$schema") == nil {
		compiled, err = compileDraft(tool.InputSchema, jsonschema.Draft7, patterns)
	}
	if err != nil {
		return nil, unusable("%s", reasonOf(err))
	}
	out, err := convert(compiled)
	if err != nil {
		return nil, err
	}
	out.size += len(definition) + 64*patterns.size
	return out, nil
}

// subschemas counts the objects and booleans in a value, including the value itself.
func (v *value) subschemas() int {
	count := 0
	if v.kind == kindObject || v.kind == kindBoolean {
		count = 1
	}
	for _, item := range v.items {
		count += item.subschemas()
	}
	return count
}

// base is the URL of the schema that is being compiled. The top-level domain is reserved (RFC 2606, section 2).
const base = "https://schema.invalid/input"

// compileDraft compiles a schema. The caller must first parse the schema with [parse], because package jsonschema
// accepts repeated names. The parameter draft applies if the schema has no `$schema`.
func compileDraft(text []byte, draft *jsonschema.Draft, patterns *patternCompiler) (*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	c.DefaultDraft(draft)
	c.UseLoader(noLoader{})
	c.UseRegexpEngine(patterns.compile)
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if err := c.AddResource(base, schema); err != nil {
		return nil, err
	}
	compiled, err := c.Compile(base)
	if patterns.err != nil { // the error from Compile does not wrap this one
		return nil, patterns.err
	}
	return compiled, err
}

var errOtherDocument = errors.New("other documents are not loaded")

// noLoader is a [jsonschema.URLLoader] that refuses to load schemas.
type noLoader struct{}

// Load implements [jsonschema.URLLoader].
func (noLoader) Load(string) (any, error) { return nil, errOtherDocument }

// reasonOf describes an error from compileDraft without revealing the content of the schema.
func reasonOf(err error) string {
	if errors.Is(err, errPatternSize) {
		return "a pattern in it is too large"
	}
	if _, ok := errors.AsType[*syntax.Error](err); ok {
		return "a pattern in it is not a regular expression of RE2"
	}
	if _, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		return "its $schema is not a draft of JSON Schema that is known here, or a $ref in it refers to another document"
	}
	if _, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		return "it is not a valid JSON Schema"
	}
	return "it is not a valid JSON Schema, or a $ref in it refers to nothing"
}
