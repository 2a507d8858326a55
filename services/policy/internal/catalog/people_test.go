package catalog_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// forPeople are the settings of a server at which each person uses her own account.
var forPeople = catalog.Settings{Mode: catalog.FirstUse, ForEachPerson: true}

// ofAna is a page of a list that the server has sent to ana's account.
var ofAna = catalog.Report{To: "default/ana", OfPerson: true}

// Definitions that the server sends only to the account of a person are not stored, and can't be called. This is true
// even if only the gateway, or only the configuration of the catalog, says that it is the account of a person.
func TestReport_DefinitionOfAPersonsAccountIsNotStored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings catalog.Settings
		list     catalog.Report
		want     engine.Status
		unknown  engine.Status
	}{
		"both":              {forPeople, ofAna, engine.NotStored, engine.NotStored},
		"the configuration": {forPeople, catalog.Report{To: "default/ana"}, engine.NotStored, engine.NotStored},
		"the gateway":       {first, ofAna, engine.Changed, engine.Unlisted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t, c.settings)
			get, more := tool("get", "Reads."), tool("more", "Reads more.")
			s.report(whole, get)
			s.report(whole, get, more)
			before := s.server
			other, private := tool("get", "Reads what ana wrote."), tool("ana-salaries", "Reads.")
			out := s.report(c.list, get, more, private)
			if !slices.Equal(out.States, []catalog.State{catalog.Accepted, catalog.Waiting, catalog.Waiting}) {
				t.Errorf("the states are %v", out.States)
			}
			s.report(c.list, other)
			if s.server != before || len(s.texts) != 2 {
				t.Errorf("%d texts are stored: %+v", len(s.texts), s.server)
			}
			s.wantStatus(engine.Callable, get)
			s.wantStatus(engine.Changed, more)
			s.wantStatus(c.want, other)
			s.wantStatus(c.unknown, private)
			if got := s.server.Facts("ana-salaries", nil, c.settings).Status; got != engine.Unlisted {
				t.Errorf("a tool without a definition is %s", got)
			}
			s.report(whole, get, more, private)
			s.wantStatus(engine.Changed, private)
			s.decide(private, catalog.Accepted)
			s.wantStatus(engine.Callable, private)
		})
	}
}

// Case X3. The accounts of people can't fill the store, so that the gateway's own new tools are stored.
func TestReport_AccountsOfPeopleDoNotFillTheStore(t *testing.T) {
	t.Parallel()
	s := newFixture(t, forPeople)
	s.report(whole, tool("get", "Reads."))
	long := strings.Repeat("x", 1<<20)
	for i := range 80 {
		s.report(catalog.Report{To: fmt.Sprint("default/", i), OfPerson: true}, tool(fmt.Sprint("tool-", i), long), tool("new", fmt.Sprint("Reads ", i)))
	}
	own := tool("new", "Reads.")
	if out := s.report(whole, tool("get", "Reads."), own); len(out.New) != 1 || s.server.NotStored != 0 {
		t.Errorf("%d definitions are stored, %d are not", len(out.New), s.server.NotStored)
	}
	s.decide(own, catalog.Accepted)
	s.wantStatus(engine.Callable, own)
}

// If definitions are not pinned, people can call the tools of their accounts.
func TestFacts_ToolOfAPersonsAccountIsCallableWhenPinningIsOff(t *testing.T) {
	t.Parallel()
	s := newFixture(t, catalog.Settings{Mode: catalog.Off, ForEachPerson: true})
	s.report(whole, tool("get", "Reads."))
	s.report(ofAna, tool("mine", "Reads."))
	s.wantStatus(engine.Callable, tool("mine", "Reads."))
	s.wantStatus(engine.Callable, tool("get", "Reads what ana wrote."))
}
