package advice_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/tools/txtar"

	"github.com/sluice-mesh/sluice/services/policy/internal/advice"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// A story contains the attempts in the archive testdata/ID_name.txtar, where ID is the ID of an entry in the attack
// catalog. Each NAME.attack.json is an attempt that the entry's rule must stop. Each NAME.ordinary.json is an attempt
// that the rule must allow.
type story struct {
	attacks, ordinary []attempt
}

func readStory(t *testing.T, e advice.Entry) story {
	t.Helper()
	name := strings.ToLower(strings.ReplaceAll(e.Name, " ", "_"))
	archive, err := txtar.ParseFile(filepath.Join("testdata", e.ID+"_"+name+".txtar"))
	if err != nil {
		t.Fatalf("%s has no story: %v", e.ID, err)
	}
	if len(bytes.TrimSpace(archive.Comment)) == 0 {
		t.Errorf("%s: the story does not say what happens", e.ID)
	}
	var s story
	for _, f := range archive.Files {
		a := attempt{file: f.Name}
		if err := json.Unmarshal(f.Data, &a, json.RejectUnknownMembers(true)); err != nil {
			t.Fatalf("%s, %s: %v", e.ID, f.Name, err)
		}
		a.checkValues(t)
		switch {
		case strings.HasSuffix(f.Name, "attack.json"):
			s.attacks = append(s.attacks, a)
		case strings.HasSuffix(f.Name, "ordinary.json"):
			s.ordinary = append(s.ordinary, a)
		default:
			t.Errorf("%s: %s is neither an attack nor an ordinary call", e.ID, f.Name)
		}
	}
	return s
}

// permissive is a document that allows every call, so that only the tested rule can stop an attack.
const permissive = "version: 1\nname: permissive\ndefault: allow\n"

func compiled(t *testing.T, texts ...string) *engine.Set {
	t.Helper()
	var files []document.File
	for i, text := range texts {
		files = append(files, document.File{Path: fmt.Sprintf("document-%d.yaml", i), Text: []byte(text)})
	}
	parsed, err := document.ParseSet(files, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if len(parsed.Warnings) > 0 {
		t.Errorf("it loads with %v", parsed.Warnings)
	}
	set, err := engine.Compile(parsed.Documents, engine.Options{SessionCap: 10, Times: engine.Times{Decide: 15 * time.Minute, Execute: 5 * time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// check returns a message for each attempt in the story that has the wrong result. The parameter set contains the
// policies that evaluate the calls.
func (s *story) check(set *engine.Set) []string {
	var wrong []string
	say := func(a *attempt, format string, args ...any) {
		wrong = append(wrong, a.file+": "+fmt.Sprintf(format, args...))
	}
	for i := range s.attacks {
		a := &s.attacks[i]
		got, people := a.outcome(set)
		if !slices.Contains([]string{"denied", "held", "limited"}, got) || got != a.Want || a.People != 0 && a.People != people {
			say(a, "the attack is %s by %d people, want %s by %d", got, people, a.Want, a.People)
		}
	}
	passes := false
	for i := range s.ordinary {
		a := &s.ordinary[i]
		got, _ := a.outcome(set)
		if !slices.Contains([]string{"allowed", "covered"}, got) || got != a.Want {
			say(a, "the ordinary call is %s, want %s", got, a.Want)
		}
		passes = passes || got == "allowed"
	}
	if len(s.attacks) == 0 || !passes {
		wrong = append(wrong, "it needs an attack, and an ordinary call that is allowed")
	}
	return wrong
}

// undefended returns a copy of the story in which the tools of all attacks are callable.
func (s story) undefended() story {
	s.attacks = slices.Clone(s.attacks)
	for i := range s.attacks {
		s.attacks[i].Tool.Standing = ""
	}
	return s
}

// Every entry has a story, which is an archive of attempts. The entry's rule stops all attacks in the story, and allows
// all ordinary attempts. If an entry has no rule, the status of the tool's definition (such as changed) must stop the
// attacks.
func TestEntries_RuleStopsTheAttacks(t *testing.T) {
	t.Parallel()
	for _, e := range advice.Entries() {
		t.Run(e.ID, func(t *testing.T) {
			t.Parallel()
			s := readStory(t, e)
			defended := []string{permissive}
			if e.Rule != "" {
				defended = append(defended, e.Rule)
				if slices.ContainsFunc(s.attacks, func(a attempt) bool { return a.Tool.Standing != "" }) {
					t.Error("an attack is stopped by what the catalog says of the definition, and not by the rule")
				}
			}
			for _, wrong := range s.check(compiled(t, defended...)) {
				t.Error(wrong)
			}
		})
	}
}

// Every attack succeeds if there is no rule and the status of the tool's definition does not stop it. Otherwise
// TestEntries_RuleStopsTheAttacks could not fail.
func TestEntries_AttacksPassWithoutTheRule(t *testing.T) {
	t.Parallel()
	for _, e := range advice.Entries() {
		t.Run(e.ID, func(t *testing.T) {
			t.Parallel()
			s := readStory(t, e).undefended()
			bare := compiled(t, permissive)
			for i := range s.attacks {
				if got, _ := s.attacks[i].outcome(bare); got != "allowed" {
					t.Errorf("%s: without a defence the attack is %s", s.attacks[i].file, got)
				}
			}
			if len(s.check(bare)) < len(s.attacks) {
				t.Errorf("without a defence the story finds only %q", s.check(bare))
			}
		})
	}
}

func TestEntries_EveryArchiveBelongsToAnEntry(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(advice.Entries()) {
		t.Errorf("there are %d stories for %d entries", len(files), len(advice.Entries()))
	}
}
