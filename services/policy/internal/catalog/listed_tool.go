package catalog

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// ListedTool is a tool in a server's list.
type ListedTool struct {
	Name string
	// Text is the definition as the server sent it.
	Text   string
	Digest Digest
}

// ErrName means that the name of a listed tool differs from the name in its definition.
var ErrName = errors.New("the tool's name differs from the name in its definition")

// ParseListed parses the definition of a tool that is listed under the given name. It returns [ErrName] if the
// definition contains a different name.
func ParseListed(name, text string) (ListedTool, error) {
	form, err := canonicaljson.Object(text)
	if err != nil {
		return ListedTool{}, fmt.Errorf("the definition of a tool: %w", err)
	}
	var named struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal([]byte(text), &named); err != nil || named.Name != name {
		return ListedTool{}, ErrName
	}
	return ListedTool{Name: name, Text: text, Digest: sha256.Sum256([]byte(form))}, nil
}

// Classify classifies a tool by its definition. It returns the zero Class if the text is not a valid definition. Such a
// definition is never accepted automatically.
func Classify(text string, trusted bool) Class {
	tool, err := classify.Read([]byte(text))
	if err != nil {
		return Class{}
	}
	c := classify.Classify(tool, trusted)
	class := Class{Category: c.GetCategory(), Risk: c.GetRisk(), Confidence: c.GetConfidence(), Tags: c.GetTags(), Arguments: argumentNames(text)}
	if len(tool.Hints) > 0 {
		class.Hints = tool.Hints
	}
	return class
}

// newerMembers contains the members of a tool definition that older MCP revisions do not have. A server that supports
// several MCP revisions omits these members when it uses an older one.
var newerMembers = []string{"title", "annotations", "outputSchema", "icons", "_meta", "execution"}

// isOlderForm reports whether a definition is the same as another one, apart from members in [newerMembers] that it
// lacks. Such a definition contains nothing new, so no operator needs to review it.
func isOlderForm(definition, than string) bool {
	var less, whole map[string]jsontext.Value
	if json.Unmarshal([]byte(definition), &less) != nil || json.Unmarshal([]byte(than), &whole) != nil {
		return false
	}
	for name, value := range less {
		if other, both := whole[name]; !both || !sameValue(value, other) {
			return false
		}
	}
	for name := range whole {
		if _, both := less[name]; !both && !slices.Contains(newerMembers, name) {
			return false
		}
	}
	return true
}

func sameValue(a, b jsontext.Value) bool {
	one, errA := canonicaljson.Object(`{"v":` + string(a) + `}`)
	two, errB := canonicaljson.Object(`{"v":` + string(b) + `}`)
	return errA == nil && errB == nil && one == two
}

// Skeleton returns the same string for all names that a reader might confuse with each other, like the skeleton in UTS
// #39, section 4 (Confusable Detection). Unicode's table of confusables contains many more letters. Skeleton maps only
// the letters with which a whole word can look like a word in Latin letters.
func Skeleton(name string) string {
	return pairs.Replace(strings.Map(func(r rune) rune {
		switch r {
		case '_', '-', '.', '/', ' ':
			return -1
		case '0':
			return 'o'
		case '1', 'i', '|':
			return 'l'
		}
		if latin, found := looksLatin[r]; found {
			return latin
		}
		return r
	}, strings.ToLower(name)))
}

// pairs replaces pairs of letters that look like a single letter.
var pairs = strings.NewReplacer("rn", "m", "vv", "w")

var looksLatin = map[rune]rune{
	'а': 'a', 'в': 'b', 'с': 'c', 'ԁ': 'd', 'е': 'e', 'ё': 'e', 'һ': 'h', 'і': 'l', 'ї': 'l', 'ј': 'j', 'к': 'k', 'ӏ': 'l', 'м': 'm', 'н': 'h',
	'о': 'o', 'р': 'p', 'ԛ': 'q', 'г': 'r', 'ѕ': 's', 'т': 't', 'υ': 'u', 'ѵ': 'v', 'ԝ': 'w', 'х': 'x', 'у': 'y',
	'α': 'a', 'β': 'b', 'ε': 'e', 'η': 'n', 'ι': 'l', 'κ': 'k', 'ν': 'v', 'ο': 'o', 'ρ': 'p', 'τ': 't', 'χ': 'x', 'γ': 'y', 'ѡ': 'w', 'ı': 'l', 'ⅼ': 'l',
}

// NamesBySkeleton groups the names of the server's tools by [Skeleton]. Each group is sorted.
func (s *Server) NamesBySkeleton() map[string][]string {
	out := make(map[string][]string, len(s.Tools))
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		look := Skeleton(name)
		out[look] = append(out[look], name)
	}
	return out
}
