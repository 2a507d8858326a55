package clientconfig

import (
	"strings"
)

// passed is an environment variable or a header whose value comes from a variable in the client's environment.
type passed struct {
	name, prefix, variable string
	header                 bool
}

// Expand replaces each reference in a value of the entry with the value of the environment variable. It also returns
// the names of variables that have neither a value nor a default.
func (e Entry) Expand(value string, getenv func(string) string) (expanded string, missing []string) {
	if e.syntax.env == nil {
		return value, nil
	}
	expanded = e.syntax.env.ReplaceAllStringFunc(value, func(ref string) string {
		name := strings.Join(e.syntax.env.FindStringSubmatch(ref)[1:], "") // only one group matches
		if found := getenv(name); found != "" {
			return found
		}
		_, otherwise, ok := strings.Cut(strings.TrimSuffix(ref, "}"), ":-")
		if !ok {
			missing = append(missing, name)
		}
		return otherwise
	})
	return expanded, missing
}

// Settings returns the environment variables and the headers of the entry, with the values that the client would use.
// It also returns the names of variables that have neither a value nor a default.
func (e Entry) Settings(getenv func(string) string) (env, headers []Pair, missing []string) {
	expand := func(pairs []Pair) []Pair {
		var out []Pair
		for _, p := range pairs {
			value, without := e.Expand(p.Value, getenv)
			missing = append(missing, without...)
			out = append(out, Pair{p.Name, value})
		}
		return out
	}
	env, headers = expand(e.Env), expand(e.Headers)
	for _, p := range e.passed {
		value := getenv(p.variable)
		switch {
		case value == "" && p.header:
			missing = append(missing, p.variable)
		case value == "": // the client starts the program without the variable
		case p.header:
			headers = append(headers, Pair{p.name, p.prefix + value})
		default:
			env = append(env, Pair{p.name, value})
		}
	}
	return env, headers, missing
}
