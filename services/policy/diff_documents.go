package policy

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// maxDiffTags is the maximum number of tags that tools outside of the catalog are assumed to have.
const maxDiffTags = 100

// documentsDiffer compares the decisions of two versions of documents.
type documentsDiffer struct {
	differ

	servers  map[string]*catalog.Server
	settings func(server string) catalog.Settings
	recorded []*policyv1.RecordedCall
	// slice waits for a time slice in which calls are compared.
	slice func(context.Context) (end func(), err error)

	callers    []engine.Subject
	configured int // the number of callers of configured tokens, which follow the first caller
}

// diff compares two versions of documents, and sends the flips and the totals, which have the findings if the documents do
// not load. It observes only what the documents observe, not what the configuration does.
func (d *documentsDiffer) diff(ctx context.Context, before, after []*policyv1.Document, send flipSender) error {
	now := time.Now()
	d.totals = &policyv1.DiffTotals{Servers: int32(len(d.servers))}
	old, problems := parseFor(before, now)
	next, further := parseFor(after, now)
	d.totals.Findings = slices.Concat(problems, further)
	if len(d.totals.GetFindings()) > 0 {
		return send(nil, d.totals)
	}
	var err error
	d.before, d.after, err = engine.CompilePair(old, next, engine.Options{
		SessionCap: d.cfg.SessionCap, Times: engine.Times{Decide: d.cfg.Decide, Execute: d.cfg.Execute}, Now: now,
	})
	if err != nil {
		d.totals.Findings = findings(err)
		return send(nil, d.totals)
	}
	d.documents = slices.Concat(old, next)
	d.callers, d.configured = d.differ.callers()
	targets := d.targets(ctx)
	stream := newFlipStream(d.totals, send)
	err = stream.sendFlips(ctx, len(targets), func(target int, count bool) ([]*policyv1.Flip, error) {
		end, err := d.slice(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		return d.compareTarget(ctx, &targets[target], count), nil
	})
	if err != nil {
		return err
	}
	return stream.finish(engine.MayOpen(old, next))
}

// A diffTarget is what calls of several callers have in common: the tool, or the method and the name.
type diffTarget struct {
	call diffCall // without a caller and facts
	// classes are the facts with which the call of each caller is compared. It is empty if only recorded calls are compared,
	// or if listed is true, because the facts are those of the catalog.
	classes  []engine.Facts
	listed   bool
	recorded []*policyv1.RecordedCall
}

// targetKey identifies the target of recorded calls.
type targetKey struct{ server, method, name, ref string }

// targets returns the targets of all calls that are compared, those of recorded calls first.
func (d *documentsDiffer) targets(ctx context.Context) (out []diffTarget) {
	recorded := make(map[targetKey]*diffTarget)
	var order []*diffTarget
	for _, r := range d.recorded {
		c := r.GetCall()
		call := engine.Call{Method: c.GetMethod(), Server: c.GetServer(), Tool: c.GetName(), Ref: c.GetRef()}
		if call.OfTool() {
			call.Method = "" // as in generated calls, so that both become one flip
		}
		key := targetKey{call.Server, call.Method, call.Tool, call.Ref}
		if recorded[key] == nil {
			recorded[key] = &diffTarget{call: diffCall{Call: call}}
			order = append(order, recorded[key])
		}
		recorded[key].recorded = append(recorded[key].recorded, r)
	}
	for _, server := range d.serverNames() {
		for _, target := range d.targetsOf(server) {
			if ctx.Err() != nil {
				d.totals.EndedEarly = true
				break
			}
			c := &target.call
			if same := recorded[targetKey{c.Server, c.Method, c.Tool, c.Ref}]; same != nil && c.pattern == "" && c.serverPattern == "" {
				same.classes, same.listed = target.classes, target.listed
				continue
			}
			out = append(out, target)
		}
	}
	slices.SortStableFunc(order, func(a, b *diffTarget) int { return cmp.Compare(b.calls(), a.calls()) })
	first := make([]diffTarget, len(order), len(order)+len(out))
	for i, target := range order {
		first[i] = *target
	}
	return append(first, out...)
}

// calls returns the number of recorded calls.
func (t *diffTarget) calls() (n int64) {
	for _, r := range t.recorded {
		n += r.GetCount()
	}
	return n
}

// serverNames returns the servers that are configured, in the catalog, or named in the documents. If no server is
// configured, it adds examples of the patterns in the documents.
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

// targetsOf returns the targets of a server: the tools that it lists, and what the documents mention.
func (d *documentsDiffer) targetsOf(server engine.Mention) (out []diffTarget) {
	listed := make(map[string]bool)
	if known := d.servers[server.Name]; known != nil {
		for _, name := range slices.Sorted(maps.Keys(known.Tools)) {
			if listedNow(known, known.Tools[name]) {
				listed[name] = true
				out = append(out, diffTarget{call: diffCall{Call: engine.Call{Server: server.Name, Tool: name}, serverPattern: server.Pattern}, listed: true})
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
		out = append(out, target)
	}
	return out
}

// facts returns the facts about a tool as if its definition were accepted, because documents are compared and not the
// catalog. The newest accepted definition is used if the digest is not known.
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

// compareTarget returns the flips of a target. If count is true, it adds the compared calls to the totals. It returns early
// if ctx ends.
func (d *documentsDiffer) compareTarget(ctx context.Context, target *diffTarget, count bool) []*policyv1.Flip {
	call, classes := target.call, target.classes
	if target.listed {
		classes = []engine.Facts{d.facts(call.Server, call.Tool, nil)}
	}
	for i := range d.callers {
		call.Subject, call.anyCaller = d.callers[i], i == 0
		for _, call.Facts = range classes {
			if ctx.Err() != nil {
				return d.takeFlips()
			}
			if count && (i == 0 || i > d.configured || call.pattern != "" || call.serverPattern != "") {
				d.totals.Generated++
			}
			d.compare(&call, count)
		}
	}
	d.compareRecorded(target, count)
	return d.takeFlips()
}

// compareRecorded compares the recorded calls of a target. The journal does not record groups, so a caller has the groups
// of the configured token with the same tenant, subject and agent.
func (d *documentsDiffer) compareRecorded(target *diffTarget, count bool) {
	for _, r := range target.recorded {
		subject, err := unpackSubject(r.GetSubject())
		if err != nil {
			continue // the gateway records no such caller
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
		d.compare(&call, count)
	}
}

// setGroups sets the groups of a principal to those of its configured token.
func (d *documentsDiffer) setGroups(p *engine.Principal) {
	p.Groups = nil
	for _, r := range d.cfg.Tokens {
		if t := r.GetToken(); t.GetTenant() == p.Tenant && t.GetSubject() == p.Name && t.GetAgent() == p.Agent {
			p.Groups = t.GetGroups()
		}
	}
}

// compare compares the decisions on a call, and adds the changes to the flips.
func (d *documentsDiffer) compare(call *diffCall, count bool) {
	changes, complete := engine.Compare(d.before, d.after, call.Call)
	if count {
		d.totals.Compared++
	}
	if count && !complete {
		d.totals.Uncertain++
	}
	for i := range changes {
		d.add(call, &changes[i])
	}
}
