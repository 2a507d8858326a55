package policy

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// maxDiffTags limits how many tags are tried for a tool that is not in the catalog.
const maxDiffTags = 100

// documentsDiffer compares the decisions that two versions of documents make.
type documentsDiffer struct {
	differ

	servers  map[string]*catalog.Server
	settings func(server string) catalog.Settings
	recorded []*policyv1.RecordedCall

	// targets contains the targets of the recorded calls, by server. groups contains the groups of the principals that
	// have configured tokens.
	targets map[string]*recordedTargets
	groups  map[tokenKey][]string
}

// tokenKey identifies the principal that has a configured token.
type tokenKey struct{ tenant, subject, agent string }

// diff compares two versions of documents. It sends the flips, which are the calls whose result changes, and the
// totals. If documents can't be used, it sends totals with the findings instead. diff respects observe mode in the
// documents, but ignores observe mode in the configuration of servers.
func (d *documentsDiffer) diff(ctx context.Context, before, after []*policyv1.Document, send flipSender) error {
	defer d.clock.pause()
	if err := d.clock.resume(ctx); err != nil {
		return err
	}
	old, next := d.compile(before, after)
	stream := newFlipStream(d.totals, send)
	if len(d.totals.GetFindings()) > 0 {
		d.clock.pause()
		return stream.finish(nil)
	}
	d.findCallers()
	d.findRecorded()
	mayOpen := engine.MayOpen(old, next)
	if err := d.sendFlips(ctx, stream, d.calls(), d.compare); err != nil {
		return err
	}
	return stream.finish(mayOpen)
}

// compile compiles both versions of the documents into d.before and d.after, and returns the parsed documents. If
// documents can't be used, it stores the findings in the totals instead.
func (d *documentsDiffer) compile(before, after []*policyv1.Document) (old, next []engine.Document) {
	now := time.Now()
	d.totals = &policyv1.DiffTotals{Servers: int32(len(d.servers))}
	old, problems := parseFor(before, now)
	next, further := parseFor(after, now)
	if d.totals.Findings = slices.Concat(problems, further); len(d.totals.GetFindings()) > 0 {
		return nil, nil
	}
	var err error
	d.before, d.after, err = engine.CompilePair(old, next, engine.Options{
		SessionCap: d.cfg.SessionCap, Times: engine.Times{Decide: d.cfg.Decide, Execute: d.cfg.Execute}, Now: now,
	})
	if err != nil {
		d.totals.Findings = findings(err)
	}
	d.documents = slices.Concat(old, next)
	return old, next
}

func (d *documentsDiffer) compare(call *diffCall) ([]engine.Change, bool) {
	return engine.Compare(d.before, d.after, call.Call)
}

// A diffTarget is a tool, or a method and a name. Compared calls with the same target share a diffTarget.
type diffTarget struct {
	call diffCall // has neither a caller nor facts
	// classes contains the possible facts about the tool. Each caller's call is compared once for each of them. classes is
	// empty if only recorded calls are compared. It is also empty if listed is true, because then the facts come from the
	// catalog.
	classes  []engine.Facts
	listed   bool
	recorded []*policyv1.RecordedCall
	calls    int64 // number of recorded calls
}

// targetKey identifies a target on a server.
type targetKey struct{ method, name, ref string }

// recordedTargets contains the targets of the recorded calls to a server, sorted by the number of calls, highest first.
type recordedTargets struct {
	all   []*diffTarget
	byKey map[targetKey]*diffTarget
}

// find returns the recorded target of a generated call, or nil if no call with this target was recorded.
func (r *recordedTargets) find(c *diffCall) *diffTarget {
	if r == nil || c.pattern != "" || c.serverPattern != "" {
		return nil
	}
	return r.byKey[targetKey{c.Method, c.Tool, c.Ref}]
}

// findRecorded groups the recorded calls by target, and collects the groups of principals with configured tokens.
func (d *documentsDiffer) findRecorded() {
	d.targets, d.groups = make(map[string]*recordedTargets), make(map[tokenKey][]string)
	for _, t := range d.cfg.Tokens {
		d.groups[tokenKey{t.GetTenant(), t.GetSubject(), t.GetAgent()}] = t.GetGroups()
	}
	for _, r := range d.recorded {
		c := r.GetCall()
		call := engine.Call{Method: c.GetMethod(), Server: c.GetServer(), Tool: c.GetName(), Ref: c.GetRef()}
		if call.OfTool() {
			call.Method = "" // generated calls have this method, so that a recorded and a generated call become one flip
		}
		of := d.targets[call.Server]
		if of == nil {
			of = &recordedTargets{byKey: make(map[targetKey]*diffTarget)}
			d.targets[call.Server] = of
		}
		key := targetKey{call.Method, call.Tool, call.Ref}
		if of.byKey[key] == nil {
			of.byKey[key] = &diffTarget{call: diffCall{Call: call}}
			of.all = append(of.all, of.byKey[key])
		}
		target := of.byKey[key]
		target.recorded, target.calls = append(target.recorded, r), addCalls(target.calls, r.GetCount())
	}
	for _, of := range d.targets {
		slices.SortStableFunc(of.all, func(a, b *diffTarget) int { return cmp.Compare(b.calls, a.calls) })
	}
}

// calls yields all calls to compare, beginning with the calls to servers for which calls were recorded. It generates
// the calls one by one, because the documents can name many servers and tools.
func (d *documentsDiffer) calls() iter.Seq[*diffCall] {
	return func(yield func(*diffCall) bool) {
		names := d.serverNames()
		known := make(map[string]bool, len(names))
		for _, server := range names {
			known[server.Name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(d.targets)) {
			generated := iter.Seq[diffTarget](func(func(diffTarget) bool) {})
			if known[name] {
				generated = d.generatedTargets(engine.Mention{Name: name})
			}
			if !d.callsOfServer(generated, d.targets[name], yield) {
				return
			}
		}
		for _, server := range names {
			if d.targets[server.Name] == nil && !d.callsOfServer(d.generatedTargets(server), nil, yield) {
				return
			}
		}
	}
}

// callsOfServer yields the calls to a server, recorded calls first. It returns false if yield returns false.
func (d *documentsDiffer) callsOfServer(generated iter.Seq[diffTarget], recorded *recordedTargets, yield func(*diffCall) bool) bool {
	if recorded != nil {
		for target := range generated {
			if same := recorded.find(&target.call); same != nil {
				same.classes, same.listed = target.classes, target.listed
			}
		}
		for _, target := range recorded.all {
			if !d.callsOf(target, yield) {
				return false
			}
		}
	}
	for target := range generated {
		if recorded.find(&target.call) == nil && !d.callsOf(&target, yield) {
			return false
		}
	}
	return true
}

// serverNames returns the servers that are in the configuration, in the catalog, or in the documents. If no server is
// configured, it adds one example for each server pattern in the documents.
func (d *documentsDiffer) serverNames() []engine.Mention {
	names := slices.AppendSeq(slices.Collect(maps.Keys(d.cfg.Servers)), maps.Keys(d.servers))
	var examples []engine.Mention
	for _, m := range engine.MentionedServers(d.documents) {
		if m.Pattern == "" {
			names = append(names, m.Name)
		} else if len(d.cfg.Servers) == 0 && !slices.Contains(names, m.Name) {
			examples = append(examples, m)
		}
	}
	slices.Sort(names)
	var out []engine.Mention
	for _, name := range slices.Compact(names) {
		out = append(out, engine.Mention{Name: name})
	}
	return append(out, examples...)
}

// generatedTargets yields the tools that a server lists, and the targets that the documents mention.
func (d *documentsDiffer) generatedTargets(server engine.Mention) iter.Seq[diffTarget] {
	return func(yield func(diffTarget) bool) {
		listed := make(map[string]bool)
		if known := d.servers[server.Name]; known != nil {
			for _, name := range slices.Sorted(maps.Keys(known.Tools)) {
				if !listedNow(known, known.Tools[name]) {
					continue
				}
				listed[name] = true
				if !yield(diffTarget{call: diffCall{Call: engine.Call{Server: server.Name, Tool: name}, serverPattern: server.Pattern}, listed: true}) {
					return
				}
			}
		}
		classes, complete := engine.PossibleClasses(d.documents, server.Name, maxDiffTags)
		d.totals.EndedEarly = d.totals.GetEndedEarly() || !complete
		for _, m := range engine.MentionedCalls(d.documents, server.Name) {
			if listed[m.Name] && m.Method == "" {
				continue
			}
			target := diffTarget{classes: classes, call: diffCall{
				Call:    engine.Call{Server: server.Name, Method: m.Method, Ref: m.Ref, Tool: m.Name},
				pattern: m.Pattern, serverPattern: server.Pattern,
			}}
			if !target.call.OfTool() {
				target.classes = classes[:1]
			}
			if !yield(target) {
				return
			}
		}
	}
}

// callsOf yields the recorded calls with a target, and then the generated calls: one for each caller and each of the
// facts. It returns false if yield returns false. The journal does not record groups, so callsOf gives recorded callers
// the groups in their configured tokens.
func (d *documentsDiffer) callsOf(target *diffTarget, yield func(*diffCall) bool) bool {
	for _, r := range target.recorded {
		subject, err := unpackSubject(r.GetSubject())
		if err != nil {
			continue // the gateway records no such callers
		}
		d.setGroups(&subject.Caller)
		for i := range subject.Chain {
			d.setGroups(&subject.Chain[i])
		}
		call := target.call
		call.Subject, call.recorded, call.Facts = subject, r, engine.Facts{Status: engine.Callable}
		if call.OfTool() {
			call.Facts = d.facts(call.Server, call.Tool, r.GetCall().GetDefinitionDigest())
		}
		if !yield(&call) {
			return false
		}
	}
	classes := target.classes
	if target.listed {
		classes = []engine.Facts{d.facts(target.call.Server, target.call.Tool, nil)}
	}
	for call := range d.byCallers(target.call) {
		for _, call.Facts = range classes {
			if !yield(call) {
				return false
			}
		}
	}
	return true
}

// setGroups sets the groups of a principal to those in the principal's configured token.
func (d *documentsDiffer) setGroups(p *engine.Principal) {
	p.Groups = d.groups[tokenKey{p.Tenant, p.Name, p.Agent}]
}

// facts returns the facts about a tool. It treats every definition as accepted, because the comparison is about
// documents and not about the catalog. If the digest is unknown, it uses the newest accepted definition.
func (d *documentsDiffer) facts(server, tool string, digest []byte) engine.Facts {
	known := d.servers[server]
	if known == nil {
		return engine.Facts{Status: engine.Callable}
	}
	if len(digest) != len(catalog.Digest{}) || known.Tools[tool].FindDefinition(catalog.Digest(digest)) == nil {
		if pinned := known.Tools[tool].Pinned(); pinned != nil {
			digest = pinned.Digest[:]
		}
	}
	facts := known.Facts(tool, digest, d.settings(server))
	facts.Status = engine.Callable
	return facts
}
