package detect

import (
	_ "embed"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
)

//go:embed rules/gitleaks.toml
var gitleaksConfig []byte

// ruleFile is the format of the configuration of gitleaks. Keys that concern files and commits are not read.
type ruleFile struct {
	Allowlist allowlistForm `toml:"allowlist"`
	Rules     []ruleForm    `toml:"rules"`
}

type ruleForm struct {
	ID          string          `toml:"id"`
	Regex       string          `toml:"regex"`
	Path        string          `toml:"path"`
	Entropy     float64         `toml:"entropy"`
	SecretGroup int             `toml:"secretGroup"`
	Keywords    []string        `toml:"keywords"`
	Allowlists  []allowlistForm `toml:"allowlists"`
}

type allowlistForm struct {
	Condition   string   `toml:"condition"`
	Paths       []string `toml:"paths"`
	Regexes     []string `toml:"regexes"`
	RegexTarget string   `toml:"regexTarget"`
	Stopwords   []string `toml:"stopwords"`
}

// A secretRule is one rule of gitleaks.
type secretRule struct {
	id string
	// regex and allows are compiled when the rule is first used, because few rules are used and compiling takes longer
	// than searching.
	regex  func() *regexp.Regexp
	allows []func() *allowlist
	// group is the capturing group that contains the secret. 0 means the first group that is not empty.
	group int
	// entropy is the number of bits per byte that the secret's entropy must exceed. 0 means that any entropy is enough.
	entropy float64
	// reach is the maximum number of bytes between the keyword and either end of a match. It is -1 if a match can have any
	// length.
	reach int
}

// A ruleSet contains the rules and their keywords.
type ruleSet struct {
	rules []secretRule
	// global lists exceptions that apply to all rules.
	global   func() *allowlist
	keywords *wordSet
	// words contains the keywords. rulesOf[i] contains the indexes of the rules that have the keyword words[i].
	words   []string
	rulesOf [][]int32
}

// An allowlist excludes matches.
type allowlist struct {
	regexes []*regexp.Regexp
	// target is "match", "line" or empty. The regexes must match the whole match, the line of the match, or the secret,
	// respectively.
	target string
	words  *wordSet
	// all is true if both a regex and a word must match.
	all bool
}

// gitleaks returns the rules. It panics if the embedded file is invalid; a test ensures that the file is valid.
var gitleaks = sync.OnceValue(func() *ruleSet {
	rules, err := readRules(gitleaksConfig)
	if err != nil {
		panic("detect: " + err.Error())
	}
	return rules
})

// readRules reads a configuration of gitleaks. It omits rules that need the path of a file.
func readRules(config []byte) (*ruleSet, error) {
	var file ruleFile
	if err := toml.Unmarshal(config, &file); err != nil {
		return nil, fmt.Errorf("read the rules for secrets: %w", err)
	}
	out := &ruleSet{global: lazyAllowlist(file.Allowlist)}
	known := make(map[string]int)
	for _, form := range file.Rules {
		if form.Path != "" || form.Regex == "" {
			continue
		}
		rule, err := newSecretRule(form)
		if err != nil {
			return nil, err
		}
		out.rules = append(out.rules, rule)
		for _, word := range form.Keywords {
			word = strings.ToLower(word)
			i, ok := known[word]
			if !ok {
				i = len(out.words)
				known[word], out.words, out.rulesOf = i, append(out.words, word), append(out.rulesOf, nil)
			}
			out.rulesOf[i] = append(out.rulesOf[i], int32(len(out.rules)-1))
		}
	}
	out.keywords = newWordSet(out.words)
	return out, nil
}

func newSecretRule(form ruleForm) (secretRule, error) {
	parsed, err := syntax.Parse(form.Regex, syntax.Perl)
	if err != nil {
		return secretRule{}, fmt.Errorf("rule %s: %w", form.ID, err)
	}
	if len(form.Keywords) == 0 {
		return secretRule{}, fmt.Errorf("rule %s has no keywords, so each text would be matched with its regex", form.ID)
	}
	rule := secretRule{id: form.ID, group: form.SecretGroup, entropy: form.Entropy, reach: maxLength(parsed)}
	rule.regex = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(form.Regex) })
	for _, list := range form.Allowlists {
		if list.Condition == "AND" && len(list.Paths) > 0 {
			continue // a message has no path
		}
		rule.allows = append(rule.allows, lazyAllowlist(list))
	}
	return rule, nil
}

func lazyAllowlist(form allowlistForm) func() *allowlist {
	return sync.OnceValue(func() *allowlist {
		list := &allowlist{target: form.RegexTarget, all: form.Condition == "AND"}
		for _, text := range form.Regexes {
			list.regexes = append(list.regexes, regexp.MustCompile(text))
		}
		if len(form.Stopwords) > 0 {
			list.words = newWordSet(form.Stopwords)
		}
		return list
	})
}

// excludes reports whether the allowlist excludes a secret. m is the match that contains the secret.
func (a *allowlist) excludes(text string, m, secret span) bool {
	target := text[secret.start:secret.end]
	byWord := a.words != nil && a.words.isIn(target)
	switch a.target {
	case "match":
		target = text[m.start:m.end]
	case "line":
		target = lineOf(text, m)
	}
	byRegex := false
	for _, re := range a.regexes {
		byRegex = byRegex || re.MatchString(target)
	}
	if a.all && a.words != nil && len(a.regexes) > 0 {
		return byWord && byRegex
	}
	return byWord || byRegex
}

// maxLine limits how many bytes before and after a match count as part of the line.
const maxLine = 1 << 10

// lineOf returns the line that contains a match.
func lineOf(text string, m span) string {
	start, end := max(0, m.start-maxLine), min(len(text), m.end+maxLine)
	if i := strings.LastIndexByte(text[start:m.start], '\n'); i >= 0 {
		start += i + 1
	}
	if i := strings.IndexByte(text[m.end:end], '\n'); i >= 0 {
		end = m.end + i
	}
	return text[start:end]
}

// maxLength returns the maximum length of a match in bytes, or -1 if there is no maximum.
func maxLength(re *syntax.Regexp) int {
	switch re.Op { //nolint:exhaustive // the other operators match no bytes
	case syntax.OpLiteral:
		return utf8.UTFMax * len(re.Rune)
	case syntax.OpCharClass:
		if n := len(re.Rune); n > 0 && re.Rune[n-1] < utf8.RuneSelf {
			return 1
		}
		return utf8.UTFMax
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return utf8.UTFMax
	case syntax.OpCapture, syntax.OpQuest:
		return maxLength(re.Sub[0])
	case syntax.OpStar, syntax.OpPlus:
		return -1
	case syntax.OpRepeat:
		if one := maxLength(re.Sub[0]); re.Max >= 0 && one >= 0 {
			return one * re.Max
		}
		return -1
	case syntax.OpConcat, syntax.OpAlternate:
		return maxLengthOf(re)
	}
	return 0
}

// maxLengthOf returns the maximum length of a concatenation or an alternation.
func maxLengthOf(re *syntax.Regexp) (length int) {
	for _, sub := range re.Sub {
		switch one := maxLength(sub); {
		case one < 0:
			return -1
		case re.Op == syntax.OpConcat:
			length += one
		default:
			length = max(length, one)
		}
	}
	return length
}
