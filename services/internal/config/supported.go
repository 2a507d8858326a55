package config

import "fmt"

// unsupportedKeys contains keys of other versions, each with advice. They are refused by name, because accepting and
// ignoring a setting would be misleading.
var unsupportedKeys = map[string]string{
	"wasmagent": "take it out: agents are not offered",
	"ratelimit": "take it out: limits are kept in memory",

	"oidc": "use auth.tokens",
}

// ExplainKey implements [strictyaml.Explainer].
func (*File) ExplainKey(key string) (message, suggestion string, ok bool) {
	return explainUnsupported(key)
}

// ExplainKey implements [strictyaml.Explainer].
func (*Auth) ExplainKey(key string) (message, suggestion string, ok bool) {
	return explainUnsupported(key)
}

// ExplainKey implements [strictyaml.Explainer].
func (*Server) ExplainKey(key string) (message, suggestion string, ok bool) {
	return explainUnsupported(key)
}

func explainUnsupported(key string) (message, suggestion string, ok bool) {
	suggestion, ok = unsupportedKeys[key]
	return fmt.Sprintf("%q is not offered in this version", key), suggestion, ok
}

// ExplainKey implements [strictyaml.Explainer].
func (*Stores) ExplainKey(key string) (message, suggestion string, ok bool) {
	return explainUnsupported(key)
}
