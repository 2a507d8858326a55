package dialect_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"pgregory.net/rapid"
)

// The types in this file represent policies in the two source formats. Their methods evaluate calls in the same way as
// the program that defines the YAML format: github.com/PolicyLayer/Intercept, internal/engine, at the commit
// 7898b0106c74.

type modelCondition struct {
	Path  string `json:"path"`
	Op    string `json:"op"`
	Value any    `json:"value"`
}

type modelRule struct {
	Name       string           `json:"name,omitempty"`
	Action     string           `json:"action,omitempty"`
	Conditions []modelCondition `json:"conditions,omitempty"`
}

type modelTool struct {
	Rules []modelRule `json:"rules"`
}

type modelPolicy struct {
	Version string               `json:"version"`
	Default string               `json:"default"`
	Hide    []string             `json:"hide,omitempty"`
	Tools   map[string]modelTool `json:"tools"`
}

// allows reports whether the policy allows a call.
func (p *modelPolicy) allows(tool string, args map[string]any) bool {
	own, listed := p.Tools[tool]
	if isHidden(p.Hide, tool) || p.Default == "deny" && !listed {
		return false
	}
	for _, r := range append(append([]modelRule(nil), own.Rules...), p.Tools["*"].Rules...) {
		if r.Action == "deny" || !allHold(r.Conditions, args) {
			return false
		}
	}
	return true
}

func isHidden(hide []string, tool string) bool {
	for _, name := range hide {
		if name == tool || name == "*" {
			return true
		}
	}
	return false
}

type modelHosted struct {
	Version string                     `json:"version"`
	Default string                     `json:"default"`
	Hide    []string                   `json:"hide,omitempty"`
	Tools   map[string]modelHostedTool `json:"tools"`
}

type modelHostedTool struct {
	Require []modelHostedRule `json:"require,omitempty"`
	DenyIf  []modelHostedRule `json:"deny_if,omitempty"`
}

type modelHostedRule struct {
	Conditions []modelCondition `json:"conditions"`
}

// allows reports whether the policy allows a call.
func (p *modelHosted) allows(tool string, args map[string]any) bool {
	own, listed := p.Tools[tool]
	if isHidden(p.Hide, tool) || p.Default == "deny" && !listed {
		return false
	}
	for _, r := range own.Require {
		if !allHold(r.Conditions, args) {
			return false
		}
	}
	for _, r := range own.DenyIf {
		if allHold(r.Conditions, args) {
			return false
		}
	}
	return true
}

func allHold(conditions []modelCondition, args map[string]any) bool {
	for _, c := range conditions {
		if !c.holds(args) {
			return false
		}
	}
	return true
}

func (c *modelCondition) holds(args map[string]any) bool {
	var value any = args
	exists := true
	for key := range strings.SplitSeq(strings.TrimPrefix(c.Path, "args."), ".") {
		object, ok := value.(map[string]any)
		if value, exists = object[key]; !ok || !exists {
			value, exists = nil, false
			break
		}
	}
	if c.Op == "exists" {
		return (exists && value != nil) == c.Value
	}
	return exists && compares(c.Op, value, c.Value)
}

func compares(op string, got, want any) bool {
	switch op {
	case "eq", "neq":
		return isEqual(got, want) == (op == "eq")
	case "in", "not_in":
		found := false
		list, _ := want.([]any)
		for _, item := range list {
			found = found || isEqual(got, item)
		}
		return found == (op == "in")
	case "regex":
		text, ok := got.(string)
		pattern, known := want.(string)
		return ok && known && regexp.MustCompile(pattern).MatchString(text)
	case "contains":
		return includes(got, want)
	}
	a, ok := got.(float64)
	b, known := want.(float64)
	return ok && known && map[string]bool{"lt": a < b, "lte": a <= b, "gt": a > b, "gte": a >= b}[op]
}

func isEqual(got, want any) bool {
	a, ok := got.(float64)
	b, known := want.(float64)
	if ok && known {
		return a == b
	}
	return fmt.Sprint(got) == fmt.Sprint(want)
}

func includes(got, want any) bool {
	switch got := got.(type) {
	case string:
		text, ok := want.(string)
		return ok && strings.Contains(got, text)
	case []any:
		for _, item := range got {
			if isEqual(item, want) {
				return true
			}
		}
	}
	return false
}

// These lists include values that are equal after rounding or as text, and values of different types.
var (
	modelTexts   = []any{"a", "main", "b", "5", "true", "<nil>", "[a]", "", "0.5", "x y", "^a$"}
	modelNumbers = []any{0.0, 1.0, 5.0, 0.5, -1.0, 100.0, 1e15, -0.25}
	modelArgs    = []string{
		`5`, `5.0`, `5.00000000000000000001`, `4.99999999999999999999`, `0.5`, `0.50000000000000000001`, `1e-400`, `0`, `-0`, `-1`, `100`,
		`99.99999999999999999999`, `100.00000000000000000001`, `1e15`, `"5"`, `"0.5"`, `"0.50"`, `"a"`, `"main"`, `"b"`, `"xay"`, `""`, `"true"`, `true`, `false`,
		`null`, `[]`, `["a"]`, `["b","a"]`, `[5]`, `["5"]`, `[["a"]]`, `{}`, `{"a":1}`, `{"b":"a"}`, `{"b":5}`, `{"b":null}`, `"<nil>"`, `"[a]"`, `"x y"`,
	}
	modelPaths    = []string{"args.x", "args.x", "args.y", "args.x.b", "args.user-id", "args.in", "args.x.b.c"}
	modelPatterns = []any{"^a$", "a", "^m", "n$", "^a|b$", "(?i)A", `^(?:a|main)$`, "", `\Qa\E`, "x.y", "^*a", "[a-c]+$"}
)

func drawValue(t *rapid.T, op string) any {
	text, number := rapid.SampledFrom(modelTexts), rapid.SampledFrom(modelNumbers)
	any1 := rapid.OneOf(text, number, rapid.SampledFrom([]any{true, false, nil}))
	switch op {
	case "in", "not_in":
		of := rapid.SampledFrom([]*rapid.Generator[any]{text, number, any1}).Draw(t, "of")
		list := rapid.SliceOfN(of, 0, 3).Draw(t, "list")
		return append([]any{}, list...)
	case "lt", "lte", "gt", "gte":
		return number.Draw(t, "number")
	case "regex":
		return rapid.SampledFrom(modelPatterns).Draw(t, "pattern")
	case "exists":
		return rapid.Bool().Draw(t, "exists")
	}
	return any1.Draw(t, "value")
}

func drawConditions(t *rapid.T, least int) (out []modelCondition) {
	for range rapid.IntRange(least, 3).Draw(t, "conditions") {
		op := rapid.SampledFrom([]string{"eq", "neq", "in", "not_in", "lt", "lte", "gt", "gte", "regex", "contains", "exists"}).Draw(t, "op")
		out = append(out, modelCondition{rapid.SampledFrom(modelPaths).Draw(t, "path"), op, drawValue(t, op)})
	}
	return out
}

func drawPolicy(t *rapid.T) *modelPolicy {
	out := &modelPolicy{Version: "1", Default: rapid.SampledFrom([]string{"allow", "deny"}).Draw(t, "default"), Tools: make(map[string]modelTool)}
	if rapid.IntRange(0, 5).Draw(t, "hides") == 0 {
		out.Hide = []string{rapid.SampledFrom([]string{"t", "u", "*"}).Draw(t, "hidden")}
	}
	for _, name := range []string{"t", "*"} {
		if rapid.IntRange(0, 3).Draw(t, "absent") == 0 {
			continue
		}
		tool := modelTool{Rules: []modelRule{}}
		for i := range rapid.IntRange(0, 2).Draw(t, "rules") {
			r := modelRule{Name: fmt.Sprintf("r %d", i)}
			if rapid.IntRange(0, 9).Draw(t, "denies") == 0 {
				r.Action = "deny"
			} else {
				r.Conditions = drawConditions(t, 1)
			}
			tool.Rules = append(tool.Rules, r)
		}
		out.Tools[name] = tool
	}
	return out
}

func drawHosted(t *rapid.T) *modelHosted {
	out := &modelHosted{Version: "1", Default: rapid.SampledFrom([]string{"allow", "deny"}).Draw(t, "default"), Tools: make(map[string]modelHostedTool)}
	var tool modelHostedTool
	for range rapid.IntRange(0, 2).Draw(t, "require") {
		tool.Require = append(tool.Require, modelHostedRule{drawConditions(t, 1)})
	}
	for range rapid.IntRange(0, 2).Draw(t, "deny_if") {
		tool.DenyIf = append(tool.DenyIf, modelHostedRule{append([]modelCondition{}, drawConditions(t, 0)...)})
	}
	out.Tools["t"] = tool
	return out
}

// drawArguments returns random arguments as JSON.
func drawArguments(t *rapid.T) string {
	var members []string
	for _, key := range []string{"x", "y", "user-id", "in"} {
		if rapid.IntRange(0, 2).Draw(t, "absent") > 0 {
			members = append(members, fmt.Sprintf("%q:%s", key, rapid.SampledFrom(modelArgs).Draw(t, key)))
		}
	}
	return "{" + strings.Join(members, ",") + "}"
}

func decodeArguments(text string) map[string]any {
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		panic(err)
	}
	return out
}
