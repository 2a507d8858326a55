package propose

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// These limits apply to a bound that is a list of observed strings. maxValues limits the number of different values in
	// the list. minCalls is the minimum number of calls in which each value must occur.
	maxValues, minCalls = 8, 3
	// maxValueBytes limits the length in bytes of each value in such a list, because people read the list.
	maxValueBytes = 200
	// maxArguments limits the number of different arguments in the calls to a tool. If there are more, no bounds are
	// derived.
	maxArguments = 64
)

// A Call contains the arguments of an observed call.
type Call struct {
	// Arguments is the JSON of the arguments. It is empty if the call had no arguments.
	Arguments string
	// NotRecorded is true if the arguments are unknown.
	NotRecorded bool
	// Redacted is true if some values in Arguments were redacted.
	Redacted bool
}

// A Bound limits an argument to the values in the observed calls, or says why no limit could be derived.
type Bound struct {
	// Argument is the name of the argument. It is empty in the Bound that restricts which arguments may be present.
	Argument string
	// Condition is true for the observed calls. It is empty if the argument has no bound.
	Condition string
	// Note describes the bound, or says why there is no bound.
	Note string
}

// Bounded reports whether each of the bounds has a condition.
func Bounded(bounds []Bound) bool {
	return !slices.ContainsFunc(bounds, func(b Bound) bool { return b.Condition == "" })
}

// Join returns a condition that combines all bounds. It is empty if no Bound has a condition.
func Join(bounds []Bound) string {
	var parts []string
	for _, b := range bounds {
		if b.Condition != "" {
			parts = append(parts, b.Condition)
		}
	}
	return strings.Join(parts, " && ")
}

// Bounds derives the bounds for a tool's arguments, sorted by argument. If a Bound has no condition, its note contains
// the reason. If the arguments of a call are unknown, or if the calls have more than maxArguments different arguments,
// the result is a single Bound with a note. The tool's schema may be zero. The parameter home is the path of a home
// folder, or empty. A folder that contains this home folder is never the bound for a path.
func Bounds(calls []Call, schema engine.Schema, home string) []Bound {
	all, why := read(calls)
	if why != "" {
		return []Bound{{Note: "no bounds: " + why}}
	}
	names := slices.Sorted(maps.Keys(all))
	if len(names) > maxArguments {
		return []Bound{{Note: fmt.Sprintf("no bounds: the calls have more than %d different arguments", maxArguments)}}
	}
	out := []Bound{namesBound(names)}
	for _, name := range names {
		out = append(out, all[name].bound(len(calls), schema, home))
	}
	distinct := Distinct(calls)
	return fit(keep(out, distinct, schema), distinct, schema)
}

// Distinct returns the calls without duplicates.
func Distinct(calls []Call) []Call {
	seen := make(map[Call]bool, len(calls))
	var out []Call
	for _, c := range calls {
		if !seen[c] {
			seen[c], out = true, append(out, c)
		}
	}
	return out
}

// read returns the observed arguments by name. If the arguments of a call are unknown, why is the reason. Otherwise why
// is empty.
func read(calls []Call) (all map[string]*argument, why string) {
	all = make(map[string]*argument)
	for _, c := range calls {
		if c.NotRecorded {
			return nil, fmt.Sprintf("the arguments of %d of %d calls were not recorded", count(calls, func(c Call) bool { return c.NotRecorded }), len(calls))
		}
		values, ok := c.values()
		if !ok {
			return nil, "the arguments of a call were replaced as a whole"
		}
		hidden := 0
		for name, value := range values {
			if all[name] == nil {
				all[name] = &argument{name: name}
			}
			if c.Redacted && isReplaced(string(value)) {
				hidden++
				all[name].replaced++
				continue
			}
			all[name].values = append(all[name].values, value)
		}
		if c.Redacted && (hidden == 0 || slices.ContainsFunc(slices.Collect(maps.Keys(values)), isReplaced)) {
			return nil, "values of a call were replaced, and it is not known which"
		}
	}
	return all, ""
}

func count(calls []Call, of func(Call) bool) (n int) {
	for _, c := range calls {
		if of(c) {
			n++
		}
	}
	return n
}

// isReplaced reports whether a JSON text contains the replacement for a redacted value.
func isReplaced(text string) bool { return strings.Contains(text, "[redacted") }

// values returns the values of the arguments by name. It returns false if the arguments are not a JSON object.
func (c Call) values() (out map[string]jsontext.Value, ok bool) {
	if c.Arguments == "" {
		return nil, true
	}
	err := json.Unmarshal([]byte(c.Arguments), &out)
	return out, err == nil && out != nil
}

// namesBound returns the bound that forbids all arguments except the given ones.
func namesBound(names []string) Bound {
	if len(names) == 0 {
		return Bound{Condition: "size(args) == 0", Note: "arguments: none in any call"}
	}
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = strconv.QuoteToASCII(name)
	}
	list := strings.Join(quoted, ", ")
	return Bound{Condition: "args.all(k, k in [" + list + "])", Note: "arguments: only " + list}
}

// keep removes the conditions that are false for an observed call or do not compile. This is only a safeguard, because
// the derived conditions should be true for all observed calls. Calls whose arguments are too large for any condition
// are ignored.
func keep(bounds []Bound, calls []Call, schema engine.Schema) []Bound {
	for i, b := range bounds {
		if b.Condition == "" {
			continue
		}
		if why := refuses(b.Condition, calls, schema); why != "" {
			bounds[i].Condition, bounds[i].Note = "", fmt.Sprintf("%s: no bound: `%s` %s", title(b.Argument), b.Condition, why)
		}
	}
	return bounds
}

// refuses returns the reason why a condition can't be used for the observed calls, or "" if it can.
func refuses(text string, calls []Call, schema engine.Schema) string {
	compiled, err := condition.Compile(text)
	if err != nil {
		return "is not a condition: " + err.Error()
	}
	for _, c := range calls {
		in := condition.Input{Properties: Properties(schema)}
		in.Args, in.ArgsError = condition.ParseArguments(c.Params())
		if held, err := compiled.Evaluate(&in); err != nil {
			return "can't be evaluated for an observed call: " + err.Error()
		} else if held != condition.True {
			return "refuses an observed call"
		}
	}
	return ""
}

// Params returns the params of a request with the call's arguments.
func (c Call) Params() string {
	if c.Arguments == "" {
		return ""
	}
	return `{"arguments":` + c.Arguments + `}`
}

// Properties returns the sorted names of the arguments in a schema, or nil if the schema also allows other arguments.
func Properties(schema engine.Schema) []string {
	if !schema.Closed {
		return nil
	}
	return slices.Sorted(maps.Keys(schema.Arguments))
}

// fit removes the longest conditions until the remaining ones can be combined into one condition that is true for all
// calls. Each condition alone is true for all calls, but the combination may be too long, or take too long to evaluate.
func fit(bounds []Bound, calls []Call, schema engine.Schema) []Bound {
	for {
		all := Join(bounds)
		if all == "" || refuses(all, calls, schema) == "" {
			return bounds
		}
		longest := 0
		for i, b := range bounds {
			if len(b.Condition) > len(bounds[longest].Condition) {
				longest = i
			}
		}
		bounds[longest].Condition, bounds[longest].Note = "", title(bounds[longest].Argument)+": no bound: the condition of the rule would be too long"
	}
}

func title(argument string) string {
	if argument == "" {
		return "arguments"
	}
	return strconv.QuoteToASCII(argument)
}
