package engine_test

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// patternDocument returns a document that allows the calls by agents whose names match a pattern.
func patternDocument(pattern string) engine.Document {
	return engine.Document{Name: "p", Rules: []engine.Rule{
		{Name: "r", Match: engine.Match{Agent: []string{pattern}}, Action: engine.ActionAllow},
	}}
}

func matches(set *engine.Set, agent string) bool {
	subject := person("x")
	subject.Caller.Agent = agent
	return set.Decide(engine.Call{Facts: callable, Server: "s", Tool: "t", Subject: subject}).Effect == engine.Allow
}

func TestPattern_Match(t *testing.T) {
	t.Parallel()
	tests := []struct {
		pattern    string
		match, not []string
	}{
		{"dev", []string{"dev"}, []string{"", "Dev", "devs", "a dev", "de"}},
		{"*", []string{"", "x", "a/b\nc"}, nil},
		{"ci-*", []string{"ci-", "ci-1", "ci-a-b"}, []string{"ci", "xci-1"}},
		{"*-ci", []string{"-ci", "a-ci", "ci-ci"}, []string{"a-ci-", "ci"}},
		{"a*b*c", []string{"abc", "axbxc", "abbc", "abcbc"}, []string{"ab", "acb", "abcd"}},
		{"a**b", []string{"ab", "axb"}, []string{"a"}},
		{"?", []string{"x", "é", "\xff"}, []string{"", "xy", "é2"}},
		{"a?c*", []string{"abc", "aéc!"}, []string{"ac", "ab"}},
		{"é*ü", []string{"éü", "é-ü"}, []string{"e-ü", "é-u"}},
		{`\*`, []string{"*"}, []string{"x", `\*`, ""}},
		{`a\?\\\[b`, []string{`a?\[b`}, []string{`ax\[b`}},
		{`*\**`, []string{"*", "a*b"}, []string{"", "ab"}},
		{"*@example.com", []string{"ana@example.com"}, []string{"ana@example.com.evil", "ana@EXAMPLE.com"}},
		{strings.Repeat("*a", 100) + "b", nil, []string{strings.Repeat("a", 256)}},
	}
	for _, tt := range tests {
		set := compile(t, patternDocument(tt.pattern))
		for _, text := range tt.match {
			if !matches(set, text) {
				t.Errorf("%q does not match %q", tt.pattern, text)
			}
		}
		for _, text := range tt.not {
			if matches(set, text) {
				t.Errorf("%q matches %q", tt.pattern, text)
			}
		}
	}
}

// TestPattern_AgreesWithRegularExpressions compares patterns with equivalent regular expressions.
func TestPattern_AgreesWithRegularExpressions(t *testing.T) {
	t.Parallel()
	pattern := rapid.StringOfN(rapid.SampledFrom([]rune(`abé**?\\`)), 1, 8, -1)
	text := rapid.StringOfN(rapid.SampledFrom([]rune(`abé*?\\`)), 0, 8, -1)
	rapid.Check(t, func(t *rapid.T) {
		p := pattern.Draw(t, "pattern")
		var form strings.Builder
		escaped := false
		for _, r := range p {
			switch {
			case !escaped && r == '\\':
				escaped = true
				continue
			case !escaped && r == '*':
				form.WriteString(".*")
			case !escaped && r == '?':
				form.WriteString(".")
			default:
				form.WriteString(regexp.QuoteMeta(string(r)))
			}
			escaped = false
		}
		set, err := engine.Compile([]engine.Document{patternDocument(p)}, options)
		if (err != nil) != escaped {
			t.Fatalf("Compile with %q: %v", p, err)
		}
		if err != nil {
			return
		}
		want := regexp.MustCompile("^(?s:" + form.String() + ")$")
		for range 10 {
			if s := text.Draw(t, "text"); matches(set, s) != want.MatchString(s) {
				t.Fatalf("%q and %q: match is %t", p, s, matches(set, s))
			}
		}
	})
}
