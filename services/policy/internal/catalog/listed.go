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

	"github.com/sluice-mesh/sluice/services/internal/canonical"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// Listed is a definition in a server's list.
type Listed struct {
	Name string
	// Text is the definition as the server sent it.
	Text   string
	Digest Digest
}

// ErrName means that a tool's name is not the name in its definition.
var ErrName = errors.New("the tool's name is not the one in its definition")

// Read reads a definition that is listed under a name. It returns [ErrName] if the definition has another name.
func Read(name, text string) (Listed, error) {
	form, err := canonical.Object(text)
	if err != nil {
		return Listed{}, fmt.Errorf("the definition of a tool: %w", err)
	}
	var named struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal([]byte(text), &named); err != nil || named.Name != name {
		return Listed{}, ErrName
	}
	return Listed{Name: name, Text: text, Digest: sha256.Sum256([]byte(form))}, nil
}

// Classify classifies a tool by its definition. A definition that can't be read as a tool's has the zero Class, and
// only an operator can accept it.
func Classify(text string, trusted bool) Class {
	tool, err := classify.Read([]byte(text))
	if err != nil {
		return Class{}
	}
	c := classify.Classify(tool, trusted)
	class := Class{Category: c.GetCategory(), Risk: c.GetRisk(), Confidence: c.GetConfidence(), Tags: c.GetTags()}
	if len(tool.Hints) > 0 {
		class.Hints = tool.Hints
	}
	return class
}

// eraMembers are the members of a definition that older revisions of MCP do not have. A server that speaks several
// revisions leaves them out for some.
var eraMembers = []string{"title", "annotations", "outputSchema", "icons", "_meta", "execution"}

// saysLess reports whether a definition equals another except for members that older revisions do not have, which it
// may lack. It adds nothing, so it needs no review.
func saysLess(definition, than string) bool {
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
		if _, both := less[name]; !both && !slices.Contains(eraMembers, name) {
			return false
		}
	}
	return true
}

func sameValue(a, b jsontext.Value) bool {
	one, errA := canonical.Object(`{"v":` + string(a) + `}`)
	two, errB := canonical.Object(`{"v":` + string(b) + `}`)
	return errA == nil && errB == nil && one == two
}

// Look returns what a name roughly looks like: names that a reader may confuse have the same look. The letters of
// other scripts are those of Unicode's confusables (UTS #39) that make whole words look Latin.
func Look(name string) string {
	return likeOne.Replace(strings.Map(func(r rune) rune {
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

// likeOne replaces pairs of letters that look like one letter.
var likeOne = strings.NewReplacer("rn", "m", "vv", "w")

var looksLatin = map[rune]rune{
	'а': 'a', 'в': 'b', 'с': 'c', 'ԁ': 'd', 'е': 'e', 'ё': 'e', 'һ': 'h', 'і': 'l', 'ї': 'l', 'ј': 'j', 'к': 'k', 'ӏ': 'l', 'м': 'm', 'н': 'h',
	'о': 'o', 'р': 'p', 'ԛ': 'q', 'г': 'r', 'ѕ': 's', 'т': 't', 'υ': 'u', 'ѵ': 'v', 'ԝ': 'w', 'х': 'x', 'у': 'y',
	'α': 'a', 'β': 'b', 'ε': 'e', 'η': 'n', 'ι': 'l', 'κ': 'k', 'ν': 'v', 'ο': 'o', 'ρ': 'p', 'τ': 't', 'χ': 'x', 'γ': 'y', 'ѡ': 'w', 'ı': 'l', 'ⅼ': 'l',
}

// Looks returns the names of the server's tools by their [Look]; each list is sorted.
func (s *Server) Looks() map[string][]string {
	out := make(map[string][]string, len(s.Tools))
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		look := Look(name)
		out[look] = append(out[look], name)
	}
	return out
}
