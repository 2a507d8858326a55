package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Bounds on the stored data of one server, whose lists may be hostile.
const (
	// MaxTools is the largest number of tools of a server.
	MaxTools = 20_000
	// MaxDefinitions is the largest number of definitions of a tool.
	MaxDefinitions = 100
	// MaxWaiting is the largest number of definitions of a tool that wait.
	MaxWaiting = 10
	// MaxWaitingBytes is the largest total size of the definitions of a server that wait, each counted with overhead
	// bytes for its state.
	MaxWaitingBytes = 64 << 20
	overhead        = 1 << 10
)

// forgotten is how long a tool that only sessions have listed, and that no operator has decided about, is remembered.
const forgotten = 24 * time.Hour

// maxUnkept is the largest count of definitions that were not stored.
const maxUnkept = 1000

// again is how old Definition.Again may be before it is updated.
const again = time.Hour

// A Report is a list of a server.
type Report struct {
	// Version is the negotiated revision of MCP.
	Version string
	// Whole says that the list is the server's whole list, not a page of it.
	Whole bool
	// To is the principal to whom the list was sent; empty for the gateway itself.
	To string
	// Tools are the entries of the list. Each has another name.
	Tools []Listed
	// LeftOut are the names of entries that exceed the bounds.
	LeftOut []string
}

// An Outcome is the result of a report.
type Outcome struct {
	// Server is the new state of the server; the same pointer if nothing has changed.
	Server *Server
	// States are the states of the definitions, in the order of the report's tools.
	States []State
	// New are the indexes of the report's tools whose definitions must be stored. Gone are definitions that are not
	// needed any more.
	New  []int
	Gone []Digest
}

// Twice returns a name that occurs more than once in a list; empty if there is none.
func Twice(tools []Listed) string {
	seen := make(map[string]bool, len(tools))
	for _, t := range tools {
		if seen[t.Name] {
			return t.Name
		}
		seen[t.Name] = true
	}
	return ""
}

// reporting is a report while it is applied.
type reporting struct {
	Report

	now  time.Time
	mode Mode
	// text returns a stored definition.
	text func(Digest) (string, error)

	out     Outcome
	changed map[string]*Tool
	// first says that the list is the server's first whole list, and era that it is the first one of another protocol
	// version.
	first, era bool
	looks      map[string]int
	// waiting is the size of the definitions that wait, and added the number of new tools.
	waiting, added int
}

// Report applies a list of the server. text returns a stored definition; Report returns only errors of text.
func (s *Server) Report(r Report, set Settings, now time.Time, text func(Digest) (string, error)) (Outcome, error) {
	w := &reporting{Report: r, now: now, mode: set.Mode, text: text, out: Outcome{Server: s}, changed: make(map[string]*Tool)}
	_, known := s.Lists[r.Version]
	w.first = r.Whole && set.Mode == FirstUse && s.First == "" && len(r.Tools) > 0
	w.era = r.Whole && set.Mode == FirstUse && s.First != "" && !known
	if w.first {
		w.looks = looksOf(s, r.Tools)
	}
	for i, t := range r.Tools {
		state, err := w.take(s, i, t, set)
		if err != nil {
			return Outcome{}, err
		}
		w.out.States = append(w.out.States, state)
	}
	if r.Whole {
		w.replace(s)
	}
	if len(w.changed) > 0 {
		w.out.Server = w.out.Server.with(w.changed)
	}
	w.head()
	return w.out, nil
}

// head records the data of a whole list other than its tools.
func (w *reporting) head() {
	s := w.out.Server
	last, seen := s.Lists[w.Version]
	if !w.Whole || seen && !w.first && w.now.Sub(last) < again && slices.Equal(s.LeftOut, w.LeftOut) {
		return
	}
	next := *s
	next.Lists = maps.Clone(s.Lists)
	if next.Lists == nil {
		next.Lists = make(map[string]time.Time)
	}
	next.Lists[w.Version] = w.now
	next.LeftOut = slices.Clone(w.LeftOut)
	if w.first || w.mode == Review && s.First == "" && len(w.Tools) > 0 { // so that a later list is not accepted automatically after a review
		next.First = w.Version
	}
	w.out.Server = &next
}

// tool returns a copy of a tool that may be changed.
func (w *reporting) tool(s *Server, name string) *Tool {
	if t := w.changed[name]; t != nil {
		return t
	}
	t := s.Tools[name].clone()
	w.changed[name] = t
	return t
}

// take applies one definition.
func (w *reporting) take(s *Server, place int, l Listed, set Settings) (State, error) {
	known := s.Tools[l.Name].Of(l.Digest)
	if known == nil {
		return w.add(s, place, l, set)
	}
	listed := (!w.Whole || slices.Contains(known.Whole, w.Version)) && (w.To != "" || known.By == "")
	if listed && slices.Contains(known.Versions, w.Version) && w.now.Sub(known.Again) < again && (!w.first || known.State != Waiting) {
		return known.State, nil
	}
	t := w.tool(s, l.Name)
	d := t.Of(l.Digest)
	d.Again = w.now
	if w.To == "" {
		d.By = ""
	}
	d.Versions = including(d.Versions, w.Version)
	if w.Whole {
		d.Whole = including(d.Whole, w.Version)
	}
	if d.State == Waiting && w.first {
		w.judge(d, l)
	}
	return d.State, nil
}

// add applies a definition that was not seen before.
func (w *reporting) add(s *Server, place int, l Listed, set Settings) (State, error) {
	if !w.room(s, l) {
		if s.Unkept >= maxUnkept { // beyond that it is not counted, so that nothing is written
			return Waiting, nil
		}
		if w.out.Server == s {
			next := *s
			w.out.Server = &next
		}
		if w.out.Server.Unkept < maxUnkept {
			w.out.Server.Unkept++
		}
		return Waiting, nil
	}
	t := w.tool(s, l.Name)
	d := Definition{
		Digest: l.Digest, Class: Classify(l.Text, set.Trusted), Bytes: len(l.Text), Seen: w.now, Again: w.now, By: w.To, Versions: []string{w.Version},
	}
	if w.Whole {
		d.Whole = []string{w.Version}
	}
	switch {
	case w.first:
		w.judge(&d, l)
	case w.era:
		if err := w.compare(t, &d, l); err != nil {
			return Waiting, err
		}
	case t.has(Accepted):
		d.Reason = "it differs from the definition that was accepted"
	default:
		d.Reason = "it is new on the server"
	}
	if w.mode != FirstUse {
		d.Reason = ""
	}
	t.Definitions = append(t.Definitions, d)
	w.out.New = append(w.out.New, place)
	w.trim(t)
	return d.State, nil
}

// judge accepts a definition of the first whole list, unless it has a sign of dishonesty.
func (w *reporting) judge(d *Definition, l Listed) {
	switch {
	case d.Class.Category == 0:
		d.Reason = "it can't be read as the definition of a tool"
	case slices.Contains(d.Class.Tags, "speaks-to-the-model"):
		d.Reason = "it tells the model what to do, in addition to what the tool does"
	case slices.Contains(d.Class.Tags, "hidden-text"):
		d.Reason = "it has characters that show nothing, or text in another script than the rest"
	case w.looks[Look(l.Name)] > 1:
		d.Reason = "its name looks like that of another tool of the server"
	default:
		d.State, d.Settled, d.Reason = Accepted, w.now, "it was on the first list"
	}
}

// compare accepts a definition of the first whole list of another protocol version if an accepted definition says the
// same.
func (w *reporting) compare(t *Tool, d *Definition, l Listed) error {
	d.Reason = "it says something else under another protocol version"
	if !t.has(Accepted) {
		d.Reason = "it is new on the server"
	}
	if t.waitsForAll() || t.has(Refused) { // a person must decide, or has decided
		return nil
	}
	for i := range t.Definitions {
		if t.Definitions[i].State != Accepted {
			continue
		}
		text, err := w.text(t.Definitions[i].Digest)
		if err != nil {
			return err
		}
		if saysLess(l.Text, text) {
			d.State, d.Settled, d.Reason = Accepted, w.now, "it says what was accepted, in another protocol version"
			return nil
		}
	}
	return nil
}

// room reports whether one more definition fits, and counts it if it does.
func (w *reporting) room(s *Server, l Listed) bool {
	_, known := s.Tools[l.Name]
	if w.waiting == 0 {
		w.waiting = s.waitingBytes()
	}
	t := s.Tools[l.Name]
	if changed := w.changed[l.Name]; changed != nil {
		t = changed
	}
	waits := 0
	if t != nil {
		waits = len(t.Waiting())
	}
	stops := waits == 0 || w.To == "" && !t.Stopped()
	switch {
	case t != nil && t.has(Accepted) && stops: // it must be stored, because it is what stops the tool
	case !known && len(s.Tools)+w.added >= MaxTools, w.waiting+len(l.Text)+overhead > MaxWaitingBytes,
		waits >= MaxWaiting, t != nil && len(t.Definitions) >= MaxDefinitions && oldest(t) < 0:
		return false
	}
	if !known {
		w.added++
	}
	w.waiting += len(l.Text) + overhead
	return true
}

// trim removes definitions of a tool that has too many.
func (w *reporting) trim(t *Tool) {
	for len(t.Definitions) > MaxDefinitions {
		i := oldest(t)
		if i < 0 {
			return
		}
		w.out.Gone = append(w.out.Gone, t.Definitions[i].Digest)
		t.Definitions = slices.Delete(t.Definitions, i, i+1)
	}
}

// oldest returns the index of the definition to remove first, among those that no whole list has: a refused one or, if
// many were accepted, an accepted one; -1 if there is none. A definition that waits is never removed to make space.
func oldest(t *Tool) int {
	accepted := 0
	for i := range t.Definitions {
		if t.Definitions[i].State == Accepted {
			accepted++
		}
	}
	best := -1
	for i := range t.Definitions {
		d := &t.Definitions[i]
		if len(d.Whole) > 0 || d.State == Waiting || d.State == Accepted && accepted <= MaxDefinitions/2 {
			continue
		}
		if best < 0 || d.Again.Before(t.Definitions[best].Again) {
			best = i
		}
	}
	return best
}

// replace removes what is not in a whole list from the last whole list of its version. It forgets tools that are idle.
func (w *reporting) replace(s *Server) {
	listed := make(map[Digest]bool, len(w.Tools))
	for _, l := range w.Tools {
		listed[l.Digest] = true
	}
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		t := s.Tools[name]
		for i := range t.Definitions {
			d := &t.Definitions[i]
			if listed[d.Digest] || !slices.Contains(d.Whole, w.Version) {
				continue
			}
			if left := w.tool(s, name).Of(d.Digest); left != nil { // nil if it was trimmed
				left.Whole = without(d.Whole, w.Version)
			}
		}
		if changed := w.changed[name]; changed != nil {
			t = changed
		}
		if t.idle(w.now) {
			for i := range t.Definitions {
				w.out.Gone = append(w.out.Gone, t.Definitions[i].Digest)
			}
			gone = append(gone, name)
		}
	}
	if len(gone) == 0 {
		return
	}
	next := *w.out.Server
	next.Tools = maps.Clone(next.Tools)
	for _, name := range gone {
		delete(next.Tools, name)
		delete(w.changed, name)
	}
	w.out.Server = &next
}

// idle reports whether no list has a tool, and no decision was made about it.
func (t *Tool) idle(now time.Time) bool {
	if t.Override != nil || t.Stop != nil {
		return false
	}
	return !slices.ContainsFunc(t.Definitions, func(d Definition) bool {
		return d.State != Waiting || len(d.Whole) > 0 || d.By != "" && now.Sub(d.Again) < forgotten
	})
}

func (s *Server) waitingBytes() int {
	n := 0
	for _, t := range s.Tools {
		for i := range t.Definitions {
			if t.Definitions[i].State == Waiting {
				n += t.Definitions[i].Bytes + overhead
			}
		}
	}
	return n
}

// looksOf counts the names of a server and of a list by their [Look].
func looksOf(s *Server, tools []Listed) map[string]int {
	names := make(map[string]bool, len(s.Tools)+len(tools))
	for name := range s.Tools {
		names[name] = true
	}
	for _, t := range tools {
		names[t.Name] = true
	}
	out := make(map[string]int, len(names))
	for name := range names {
		out[Look(name)]++
	}
	return out
}

// StopFor stops a server whose list names a tool twice, because it is unknown which of the two a call would reach.
func (s *Server) StopFor(name string, now time.Time) *Server {
	if s.Stop != nil {
		return s
	}
	next := *s
	next.Stop = &Stop{Reason: fmt.Sprintf("a list of it names the tool %s twice", quoteName(name)), Time: now}
	return &next
}

func quoteName(name string) string { return fmt.Sprintf("%q", strings.ToValidUTF8(name, "\uFFFD")) }

func including(versions []string, version string) []string {
	if slices.Contains(versions, version) {
		return versions
	}
	out := append(slices.Clone(versions), version)
	slices.Sort(out)
	return out
}

func without(versions []string, version string) []string {
	return slices.DeleteFunc(slices.Clone(versions), func(v string) bool { return v == version })
}
