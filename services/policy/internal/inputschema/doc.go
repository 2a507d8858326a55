// Package inputschema checks the arguments of a tool call against the input schema of the tool, for rules with
// `forward: strict`.
//
// # What is checked
//
// The arguments must be valid under the schema, and every member of an object must be declared. A member is declared if
// an applied part of the schema names it in `properties`, matches it with `patternProperties`, or allows it with
// `additionalProperties` or `unevaluatedProperties`. This requirement concerns the arguments themselves, and each
// nested object for which an applied part of the schema has `properties` or `patternProperties`. Other nested objects
// may have any members that the schema allows. A part of the schema is applied if the value is valid under it, so an
// alternative of `anyOf` that fails declares nothing.
//
// Numbers are compared exactly. Patterns are RE2 regular expressions. `format` and `contentEncoding` are not checked,
// as JSON Schema recommends. A schema without `$schema` uses draft 2020-12, as MCP says, or draft-07 if it is not valid
// under 2020-12. No schema is loaded from a network.
//
// # Bounds
//
// Schemas come from servers that are not trusted, and arguments come from callers that are not trusted. The size of
// both is limited, and so is the number of steps in a check. Applying a schema to a value is one step. An operation
// that takes longer counts as several steps, for example one step for each 64 bytes of a compared string. With nested
// `anyOf`, the number of times that a schema is applied to a value can grow exponentially with the length of the
// schema. If there are not enough steps, the arguments are refused.
package inputschema
