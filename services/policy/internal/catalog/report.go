package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// These constants limit the data that is stored for one server, because a hostile server can list any number of
// definitions.
const (
	// MaxTools limits the number of tools of a server.
	MaxTools = 20_000
	// MaxDefinitions limits the number of stored definitions of a tool.
	MaxDefinitions = 100
	// MaxWaiting limits the number of a tool's definitions that wait for a decision.
	MaxWaiting = 10
	// MaxWaitingBytes limits the total size in bytes of a server's definitions that wait for a decision. Each definition
	// counts with its own size plus overhead.
	MaxWaitingBytes = 64 << 20
	overhead        = 1 << 10
)

// forgetAfter is how long a tool stays in the catalog after a session last listed it. It applies only to tools that the
// gateway itself has never listed. A tool that has an override, a quarantine, or an accepted or refused definition
// always stays in the catalog.
const forgetAfter = 24 * time.Hour

// maxNotStored is the maximum value of Server.NotStored. Further definitions are not counted.
const maxNotStored = 1000

// refreshAfter is the minimum age of Definition.LastSeen before it is updated. Without this limit, every report would
// write to the store.
const refreshAfter = time.Hour

// A Report is a list of tools that a gateway received from a server.
type Report struct {
	// Version is the negotiated MCP revision.
	Version string
	// Whole is true if the list is complete, and false if it is only a page of the list.
	Whole bool
	// To is the principal to whom the server sent the list. It is empty if the gateway requested the list for itself.
	To string
	// OfPerson is true if the server sent the list to the account of a person. Definitions in the list that are not known
	// are not stored.
	OfPerson bool
	// Tools contains the tools in the list. No two of them have the same name.
	Tools []ListedTool
	// LeftOut contains the names of the listed tools that are not in Tools, because they exceed the limits or can't be
	// parsed.
	LeftOut []string
}

// An Outcome describes the changes that a report causes.
type Outcome struct {
	// Server is the new state of the server. If nothing has changed, it is the same pointer as before.
	Server *Server
	// States contains the state of each definition in Report.Tools, in the same order.
	States []State
	// New contains the indexes in Report.Tools of the definitions to store. Removed contains the digests of the
	// definitions to delete from the store.
	New     []int
	Removed []Digest
}

// FindDuplicate returns a name that occurs more than once in a list, or "" if all names are distinct.
func FindDuplicate(tools []ListedTool) string {
	seen := make(map[string]bool, len(tools))
	for _, t := range tools {
		if seen[t.Name] {
			return t.Name
		}
		seen[t.Name] = true
	}
	return ""
}

type reportRun struct {
	Report

	now  time.Time
	mode Mode
	// text returns the stored definition with the given digest.
	text func(Digest) (string, error)

	out     Outcome
	changed map[string]*Tool
	// first is true if the report contains the server's first whole list, whose definitions are accepted. newVersion is
	// true if the report contains the first whole list in its protocol version, but a whole list in another protocol
	// version was accepted earlier.
	first, newVersion bool
	// skeletonCounts contains the number of tool names for each [Skeleton].
	skeletonCounts map[string]int
	// waiting is the total size in bytes of the definitions that wait for a decision. added is the number of new tools in
	// this report.
	waiting, added int
}

// Report returns the state of the server after a report. The function text returns stored definitions. Report returns
// an error only if text does.
func (s *Server) Report(r Report, set Settings, now time.Time, text func(Digest) (string, error)) (Outcome, error) {
	w := &reportRun{Report: r, now: now, mode: set.Mode, text: text, out: Outcome{Server: s}, changed: make(map[string]*Tool)}
	_, known := s.Lists[r.Version]
	w.first = r.Whole && set.Mode == FirstUse && s.First == "" && len(r.Tools) > 0
	w.newVersion = r.Whole && set.Mode == FirstUse && s.First != "" && !known
	if w.first {
		w.skeletonCounts = countSkeletons(s, r.Tools)
	}
	for i, t := range r.Tools {
		state, err := w.applyTool(s, i, t, set)
		if err != nil {
			return Outcome{}, err
		}
		w.out.States = append(w.out.States, state)
	}
	if r.Whole {
		w.replaceList(s)
	}
	if len(w.changed) > 0 {
		w.out.Server = w.out.Server.withTools(w.changed)
	}
	w.recordList()
	return w.out, nil
}

// recordList records the time of a whole list, and the names of the tools that it leaves out.
func (w *reportRun) recordList() {
	s := w.out.Server
	last, seen := s.Lists[w.Version]
	if !w.Whole || seen && !w.first && w.now.Sub(last) < refreshAfter && slices.Equal(s.LeftOut, w.LeftOut) {
		return
	}
	next := *s
	next.Lists = maps.Clone(s.Lists)
	if next.Lists == nil {
		next.Lists = make(map[string]time.Time)
	}
	next.Lists[w.Version] = w.now
	next.LeftOut = slices.Clone(w.LeftOut)
	if w.first || w.mode == Review && s.First == "" && len(w.Tools) > 0 { // no later list may count as the first one
		next.First = w.Version
	}
	w.out.Server = &next
}

// changedTool returns the copy of a tool that this report modifies. All calls for one tool return the same copy.
func (w *reportRun) changedTool(s *Server, name string) *Tool {
	if t := w.changed[name]; t != nil {
		return t
	}
	t := s.Tools[name].clone()
	w.changed[name] = t
	return t
}

// applyTool applies a tool in the report to the state, and returns the state of the tool's definition. The parameter
// index is the tool's index in the report.
func (w *reportRun) applyTool(s *Server, index int, l ListedTool, set Settings) (State, error) {
	known := s.Tools[l.Name].FindDefinition(l.Digest)
	switch {
	case known == nil && w.To != "" && (w.OfPerson || set.ForEachPerson):
		return Waiting, nil
	case known == nil:
		return w.add(s, index, l, set)
	}
	listed := (!w.Whole || slices.Contains(known.WholeVersions, w.Version)) && (w.To != "" || known.ListedTo == "")
	if listed && slices.Contains(known.Versions, w.Version) && w.now.Sub(known.LastSeen) < refreshAfter && (!w.first || known.State != Waiting) {
		return known.State, nil
	}
	t := w.changedTool(s, l.Name)
	d := t.FindDefinition(l.Digest)
	d.LastSeen = w.now
	if w.To == "" {
		d.ListedTo = ""
	}
	d.Versions = withVersion(d.Versions, w.Version)
	if w.Whole {
		d.WholeVersions = withVersion(d.WholeVersions, w.Version)
	}
	if d.State == Waiting && w.first {
		w.acceptFirst(d, l)
	}
	return d.State, nil
}

func (w *reportRun) add(s *Server, index int, l ListedTool, set Settings) (State, error) {
	if !w.reserve(s, l) {
		if s.NotStored >= maxNotStored { // the count stays the same, so that nothing is written to the store
			return Waiting, nil
		}
		if w.out.Server == s {
			next := *s
			w.out.Server = &next
		}
		if w.out.Server.NotStored < maxNotStored {
			w.out.Server.NotStored++
		}
		return Waiting, nil
	}
	t := w.changedTool(s, l.Name)
	d := Definition{
		Digest: l.Digest, Class: Classify(l.Text, set.Trusted), Bytes: len(l.Text), FirstSeen: w.now, LastSeen: w.now, ListedTo: w.To, Versions: []string{w.Version},
	}
	if w.Whole {
		d.WholeVersions = []string{w.Version}
	}
	switch {
	case w.first:
		w.acceptFirst(&d, l)
	case w.newVersion:
		if err := w.acceptEquivalent(t, &d, l); err != nil {
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
	w.out.New = append(w.out.New, index)
	w.trim(t)
	return d.State, nil
}

// acceptFirst accepts a definition from the server's first whole list, unless the definition or the tool's name could
// deceive a reader.
func (w *reportRun) acceptFirst(d *Definition, l ListedTool) {
	switch {
	case d.Class.Category == 0:
		d.Reason = "it can't be read as the definition of a tool"
	case slices.Contains(d.Class.Tags, "speaks-to-the-model"):
		d.Reason = "it tells the model what to do, in addition to what the tool does"
	case slices.Contains(d.Class.Tags, "hidden-text"):
		d.Reason = "it has invisible characters, or text in a script that differs from that of the rest"
	case w.skeletonCounts[Skeleton(l.Name)] > 1:
		d.Reason = "its name looks like that of another tool of the server"
	default:
		d.State, d.DecidedAt, d.Reason = Accepted, w.now, "it was on the first list"
	}
}

// acceptEquivalent handles a definition in the first whole list in a further protocol version. It accepts the
// definition if, according to [isOlderForm], the definition is an older form of an accepted one. Otherwise the
// definition waits for a decision.
func (w *reportRun) acceptEquivalent(t *Tool, d *Definition, l ListedTool) error {
	d.Reason = "it differs from the accepted definition, under another protocol version"
	if !t.has(Accepted) {
		d.Reason = "it is new on the server"
	}
	if t.hasWaitingForAll() || t.has(Refused) { // an operator must decide on a definition, or has refused one
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
		if isOlderForm(l.Text, text) {
			d.State, d.DecidedAt, d.Reason = Accepted, w.now, "it equals an accepted definition, in another protocol version"
			return nil
		}
	}
	return nil
}

// reserve reports whether the limits allow another definition in the state. If so, it counts the definition.
func (w *reportRun) reserve(s *Server, l ListedTool) bool {
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
	stops := waits == 0 || w.To == "" && !t.StoppedByChange()
	switch {
	case t != nil && t.has(Accepted) && stops: // the limits do not apply, because this definition makes the gateways refuse calls to the tool
	case !known && len(s.Tools)+w.added >= MaxTools, w.waiting+len(l.Text)+overhead > MaxWaitingBytes,
		waits >= MaxWaiting, t != nil && len(t.Definitions) >= MaxDefinitions && oldestRemovable(t) < 0:
		return false
	}
	if !known {
		w.added++
	}
	w.waiting += len(l.Text) + overhead
	return true
}

// trim removes the oldest definitions of a tool until [MaxDefinitions] remain or no more can be removed.
func (w *reportRun) trim(t *Tool) {
	for len(t.Definitions) > MaxDefinitions {
		i := oldestRemovable(t)
		if i < 0 {
			return
		}
		w.out.Removed = append(w.out.Removed, t.Definitions[i].Digest)
		t.Definitions = slices.Delete(t.Definitions, i, i+1)
	}
}

// oldestRemovable returns the index of the definition to remove first, or -1 if no definition can be removed.
// Definitions are never removed while they wait for a decision or are in a newest whole list. An accepted definition is
// removed only if the tool has more than [MaxDefinitions] / 2 accepted definitions.
func oldestRemovable(t *Tool) int {
	accepted := 0
	for i := range t.Definitions {
		if t.Definitions[i].State == Accepted {
			accepted++
		}
	}
	best := -1
	for i := range t.Definitions {
		d := &t.Definitions[i]
		if len(d.WholeVersions) > 0 || d.State == Waiting || d.State == Accepted && accepted <= MaxDefinitions/2 {
			continue
		}
		if best < 0 || d.LastSeen.Before(t.Definitions[best].LastSeen) {
			best = i
		}
	}
	return best
}

// replaceList makes the reported list the newest whole list in its protocol version. It removes this version from the
// WholeVersions of all definitions that are not in the list, and removes the tools for which [Tool.idle] is true.
func (w *reportRun) replaceList(s *Server) {
	listed := make(map[Digest]bool, len(w.Tools))
	for _, l := range w.Tools {
		listed[l.Digest] = true
	}
	var removed []string
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		t := s.Tools[name]
		for i := range t.Definitions {
			d := &t.Definitions[i]
			if listed[d.Digest] || !slices.Contains(d.WholeVersions, w.Version) {
				continue
			}
			if left := w.changedTool(s, name).FindDefinition(d.Digest); left != nil { // it is nil if trim has removed the definition
				left.WholeVersions = withoutVersion(d.WholeVersions, w.Version)
			}
		}
		if changed := w.changed[name]; changed != nil {
			t = changed
		}
		if t.idle(w.now) {
			for i := range t.Definitions {
				w.out.Removed = append(w.out.Removed, t.Definitions[i].Digest)
			}
			removed = append(removed, name)
		}
	}
	if len(removed) == 0 {
		return
	}
	next := *w.out.Server
	next.Tools = maps.Clone(next.Tools)
	for _, name := range removed {
		delete(next.Tools, name)
		delete(w.changed, name)
	}
	w.out.Server = &next
}

// idle reports whether a tool can be removed. A tool can be removed if no recent list contains it, all its definitions
// wait for a decision, and it has neither an override nor a quarantine.
func (t *Tool) idle(now time.Time) bool {
	if t.Override != nil || t.Quarantine != nil {
		return false
	}
	return !slices.ContainsFunc(t.Definitions, func(d Definition) bool {
		return d.State != Waiting || len(d.WholeVersions) > 0 || d.ListedTo != "" && now.Sub(d.LastSeen) < forgetAfter
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

// countSkeletons returns the number of names with each [Skeleton]. It counts the names of the server's tools and of the
// listed tools.
func countSkeletons(s *Server, tools []ListedTool) map[string]int {
	names := make(map[string]bool, len(s.Tools)+len(tools))
	for name := range s.Tools {
		names[name] = true
	}
	for _, t := range tools {
		names[t.Name] = true
	}
	out := make(map[string]int, len(names))
	for name := range names {
		out[Skeleton(name)]++
	}
	return out
}

// QuarantineDuplicate returns the server in quarantine. It is used if a list contains the named tool twice, because
// then it is not clear which definition a call would use.
func (s *Server) QuarantineDuplicate(name string, now time.Time) *Server {
	if s.Quarantine != nil {
		return s
	}
	next := *s
	next.Quarantine = &Quarantine{Reason: fmt.Sprintf("a list of it names the tool %s twice", quoteName(name)), Time: now}
	return &next
}

func quoteName(name string) string { return fmt.Sprintf("%q", strings.ToValidUTF8(name, "\uFFFD")) }

func withVersion(versions []string, version string) []string {
	if slices.Contains(versions, version) {
		return versions
	}
	out := append(slices.Clone(versions), version)
	slices.Sort(out)
	return out
}

func withoutVersion(versions []string, version string) []string {
	return slices.DeleteFunc(slices.Clone(versions), func(v string) bool { return v == version })
}
