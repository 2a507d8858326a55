// Package strictyaml reads YAML as people mean it and refuses the rest. One
// document, no anchors, aliases, merge keys or tags, no key twice, no key that
// the target lacks, no value of another type than the target's, and all problems
// at once, each with its line and column and, where one can be guessed, the way
// out. JSON is YAML here too, save for characters escaped as surrogate pairs.
//
// Values are read exactly. Text is a plain or quoted scalar that YAML 1.2 calls a
// string: a number, a date, true or false must be quoted to be text. Numbers are
// decimal, without leading zeros or underscores. A key without a value is refused
// rather than read as absent, for a forgotten value may be a forgotten limit.
//
// A problem shows what was found only where a number, a duration, true or false
// was wanted. Elsewhere a value may be a secret, and is not repeated.
package strictyaml
