package document

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// kindHints contains suggestions for values of the wrong kind, for example a list instead of a mapping. A suggestion
// applies to values whose path matches the regular expression.
var kindHints = []struct {
	path       *regexp.Regexp
	suggestion string
}{
	{regexp.MustCompile(`^$`), "a policy has keys, and starts with version: 1"},
	{regexp.MustCompile(`^server$`), "write one name, a pattern such as files-*, or a document for each server"},
	{regexp.MustCompile(`^tools$`), "write each tool by name, for example read_file: {action: allow}"},
	{regexp.MustCompile(`^tools(\.[^.\[]+|\["[^"]*"\])$`), "write the keys of the entry, for example {action: allow}"},
	{regexp.MustCompile(`^rules$`), "begin each rule with - name: NAME"},
	{regexp.MustCompile(`^rules\[\d+\]$`), "write the keys of the rule, for example {name: NAME, match: {tool: create_*}, action: deny}"},
	{regexp.MustCompile(`\.match$`), "write what the rule matches by key, for example {tool: create_*}"},
	{regexp.MustCompile(`\.otherwise$`), "write the keys of a rule, for example {action: deny}"},
	{regexp.MustCompile(`\.rate_limit(\[\d+\])?$`), "write it as {max: 10, window: 60}"},
	{regexp.MustCompile(`\.redact$`), redactExample},
	{regexp.MustCompile(`\.redact\.(results|arguments)$`), "write it as {detect: [secrets, email], paths: [/user/token]}"},
	{regexp.MustCompile(`\.record$`), recordExample},
	{regexp.MustCompile(`\.grant$`), "write it as {calls: 10, within: 1h}"},
	{regexp.MustCompile(`\.approve_with$`), stepUpExample},
	{regexp.MustCompile(`\.(when|where)$`), `write one condition in quotes, for example 'args.draft == true && args.region == "eu"'`},
	{regexp.MustCompile(`^tests$`), "begin each test with - call:"},
	{regexp.MustCompile(`^tests\[\d+\]\.want$`), "write it as {action: deny}"},
	{regexp.MustCompile(`^tests\[\d+\]\.call$`), "write it as {tool: NAME, args: {}}"},
}

// addKindHints adds suggestions to the problems from decoding a document.
func addKindHints(problems strictyaml.Errors) {
	for i := range problems {
		p := &problems[i]
		if !strings.HasPrefix(p.Message, "wanted ") || strings.HasPrefix(p.Suggestion, "put it in") {
			continue
		}
		for _, hint := range kindHints {
			if hint.path.MatchString(p.Path) {
				p.Suggestion = hint.suggestion
				break
			}
		}
	}
}

// has reports whether a problem with the value at the given path has already been added.
func (r *reader) has(at string) bool {
	at = r.source.Problem(at, "", "").Path
	return slices.ContainsFunc(r.problems, func(p strictyaml.Problem) bool { return p.Path == at })
}

// actionHint returns the suggestion for an unknown action.
func actionHint(name string) string {
	for action, words := range map[string][]string{
		"require_approval": {"ask", "approve", "approval", "confirm", "review", "prompt"},
		"deny":             {"block", "forbid", "refuse", "reject", "disallow", "no", "false"},
		"allow":            {"permit", "accept", "pass", "yes", "true"},
	} {
		if slices.Contains(words, strings.ToLower(name)) {
			return "write " + action
		}
	}
	return strictyaml.Suggest(name, engine.Actions())
}

// configurationKeys contains keys from sluice.yaml that a user might write into a policy by mistake.
var configurationKeys = []string{"servers", "policies", "listen", "auth"}

// notAPolicy is the message for a file that is the configuration of an MCP client. No other problem is reported for
// such a file.
const notAPolicy = "this is a client's configuration of MCP servers, not a policy"

// explainDocumentKey returns the message for an unknown key at the top level of a document.
func explainDocumentKey(key string) (message, suggestion string, ok bool) {
	switch {
	case key == "mcpServers":
		return notAPolicy, "write the servers into sluice.yaml, under servers; `sluice policy suggest` writes a first policy for a server", true
	case key == "$schema":
		return `a policy has no key "$schema"`, "name the schema in a comment, # yaml-language-server: $schema=../policy.schema.json, and keep the schema itself outside the folder of the policies", true
	case slices.Contains(configurationKeys, key):
		return fmt.Sprintf("%q is a key of the configuration, not of a policy", key), "write it into sluice.yaml, and name this file under policies if it is a policy", true
	case slices.Contains(engine.Actions(), key), key == "block":
		return fmt.Sprintf("unknown key %q", key), "write the action of each tool under tools, for example delete_file: {action: deny}", true
	case key == "rate_limit":
		return fmt.Sprintf("unknown key %q", key), "write it into an entry under tools, or into a rule", true
	}
	return explainKey(key)
}

// explainRuleKey returns the message for an unknown key in a rule or an entry under `tools`.
func explainRuleKey(key string) (message, suggestion string, ok bool) {
	switch {
	case slices.Contains([]string{"if", "condition", "conditions", "where", "unless"}, key):
		return fmt.Sprintf("unknown key %q", key), "write a condition as when: 'args.draft == true'", true
	case key == "else":
		return fmt.Sprintf("unknown key %q", key), "write otherwise", true
	case key == "args", key == "arguments":
		return fmt.Sprintf("unknown key %q", key), "write a condition on the arguments as when: 'args.draft == true'", true
	}
	return explainKey(key)
}

// matchKeys contains the keys of `match`. Users sometimes write them directly into a rule.
var matchKeys = []string{"method", "tool", "prompt", "uri", "server", "agent", "principal", "groups", "tenant", "category", "risk", "tags", "annotations"}
