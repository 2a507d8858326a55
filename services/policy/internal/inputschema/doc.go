// Package inputschema checks the arguments of a tool call against the tool's input schema. Rules with `forward: strict`
// require this check.
//
// # What is checked
//
// The arguments must be valid under the schema, and the schema must declare every member of certain objects. These are
// the top-level arguments object, and each nested object for which an applied part of the schema has `properties` or
// `patternProperties`. Other nested objects may have any members that the schema allows.
//
// A part of the schema declares a member if it names the member in `properties`, matches it with `patternProperties`,
// or allows it with `additionalProperties` or `unevaluatedProperties`. The part counts only if it is applied, which
// means that the value is valid under it. For example, an alternative in `anyOf` declares nothing if the value is not
// valid under it.
//
// Numbers are compared exactly. Patterns are RE2 regular expressions. `format` and `contentEncoding` are not checked,
// as JSON Schema recommends. The default for `$schema` is draft 2020-12, as MCP specifies. If the schema is not valid
// under 2020-12, the default is draft-07. No schema is loaded from a network.
//
// # Bounds
//
// Neither the servers that send schemas nor the callers that send arguments are trusted. Therefore the size of schemas
// and arguments is limited, and so is the number of steps in a check. Applying a schema to a value is one step. A
// longer operation counts as several steps. For example, comparing strings takes one step for every 64 bytes. With
// nested `anyOf`, the number of steps can grow exponentially with the length of the schema. A check that needs too many
// steps fails, and the call is refused.
package inputschema
