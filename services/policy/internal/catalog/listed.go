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

// Listed is a definition as a server lists it.
type Listed struct {
	Name string
	// Text is the definition as it came.
	Text   string
	Digest Digest
}

// ErrName means that a tool's name is not the one in its definition.
var ErrName = errors.New("the tool's name is not the one in its definition")

// Read reads a definition that is listed under a name.
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

// Classify says what a definition alone makes of a tool. One that can't be read as a
// tool's has no class, and is accepted by nobody but a person.
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

// eraMembers are the members of a definition that older revisions of MCP do not have: a
// server that speaks several leaves them out for some.
var eraMembers = []string{"title", "annotations", "outputSchema", "icons", "_meta", "execution"}

// saysLess reports whether a definition says what another does, but for members which older
// revisions do not have. It says nothing of its own, so nobody need look at it.
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

// Look is what a name looks like, roughly: names that a reader may take for each
// other have the same. Letters of other scripts are those of Unicode's confusables (UTS
// #39) that make whole words look Latin.
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

// likeOne are pairs of letters that look like one.
var likeOne = strings.NewReplacer("rn", "m", "vv", "w")

var looksLatin = map[rune]rune{
	'а': 'a', 'в': 'b', 'с': 'c', 'ԁ': 'd', 'е': 'e', 'ё': 'e', 'һ': 'h', 'і': 'l', 'ї': 'l', 'ј': 'j', 'к': 'k', 'ӏ': 'l', 'м': 'm', 'н': 'h',
	'о': 'o', 'р': 'p', 'ԛ': 'q', 'г': 'r', 'ѕ': 's', 'т': 't', 'υ': 'u', 'ѵ': 'v', 'ԝ': 'w', 'х': 'x', 'у': 'y',
	'α': 'a', 'β': 'b', 'ε': 'e', 'η': 'n', 'ι': 'l', 'κ': 'k', 'ν': 'v', 'ο': 'o', 'ρ': 'p', 'τ': 't', 'χ': 'x', 'γ': 'y', 'ѡ': 'w', 'ı': 'l', 'ⅼ': 'l',
}

// Looks are the names of the server's tools by what they look like, roughly; each list is
// sorted.
func (s *Server) Looks() map[string][]string {
	out := make(map[string][]string, len(s.Tools))
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		look := Look(name)
		out[look] = append(out[look], name)
	}
	return out
}
