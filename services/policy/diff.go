package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// Bounds of a comparison of documents.
const (
	// maxDiffTime limits the time of one DiffRevisions request.
	maxDiffTime = 5 * time.Second
	// maxDiffCalls is the maximum number of calls that are compared, each by one caller.
	maxDiffCalls = 1_000_000
	// maxDiffCallers is the maximum number of callers whose calls are compared.
	maxDiffCallers = 200
	// maxDiffTags is the maximum number of tags that tools outside of the catalog are assumed to have.
	maxDiffTags = 100
	// maxComparedFlips is the number of flips at which the comparison ends.
	maxComparedFlips = 20_000
	// maxFlips is the maximum number of flips in a response, and maxFlipBytes is their maximum size. maxFlipSubjects is the
	// maximum number of further subjects of one flip.
	maxFlips, maxFlipBytes, maxFlipSubjects = 1000, 2 << 20, 20
)

// DiffRevisions implements policyv1.PolicyServiceServer.
func (s *Service) DiffRevisions(ctx context.Context, req *policyv1.DiffRevisionsRequest) (*policyv1.DiffRevisionsResponse, error) {
	if !mayReadDocuments(authn.CallerOf(ctx)) {
		return nil, toStatus(errOtherTenant)
	}
	set, err := s.current(ctx)
	switch {
	case err != nil:
		return nil, toStatus(err)
	case set == nil:
		return nil, toStatus(errNoPolicy)
	}
	before, after, err := s.comparedDocuments(ctx, set, req)
	if err != nil {
		return nil, toStatus(err)
	}
	return s.diffDocuments(ctx, set, before, after, req.GetRecorded())
}

// diffDocuments compares the decisions of two versions of documents, with the catalog of set.
func (s *Service) diffDocuments(ctx context.Context, set *activeSet, before, after []*policyv1.Document, recorded []*policyv1.RecordedCall) (*policyv1.DiffRevisionsResponse, error) {
	done, err := s.lintSlots.Acquire(ctx, callerOwner(ctx))
	if err != nil {
		return nil, err
	}
	defer done()
	limited, cancel := context.WithTimeout(ctx, maxDiffTime)
	defer cancel()
	cfg := s.cfg
	cfg.Identities = s.tokens.identities()
	d := &differ{cfg: cfg, servers: set.catalog.servers, settings: s.settings}
	out := d.diff(limited, before, after, recorded)
	return out, ctx.Err()
}

// comparedDocuments returns the documents that a request compares.
func (s *Service) comparedDocuments(ctx context.Context, set *activeSet, req *policyv1.DiffRevisionsRequest) (before, after []*policyv1.Document, err error) {
	before, after = req.GetOldDocuments(), req.GetDocuments()
	switch {
	case (len(after) == 0) == (req.GetNewRevision() == ""):
		return nil, nil, errDocumentsRequired
	case req.GetOldRevision() != "" && len(before) > 0:
		return nil, nil, errNoRevision
	}
	if req.GetOldRevision() != "" {
		found, err := s.findRevision(ctx, req.GetOldRevision())
		if err != nil {
			return nil, nil, err
		}
		before = found.documents
	} else if len(before) == 0 {
		before = set.documents
	}
	if req.GetNewRevision() != "" {
		found, err := s.findRevision(ctx, req.GetNewRevision())
		if err != nil {
			return nil, nil, err
		}
		after = found.documents
	}
	return before, after, nil
}

// Diff compares the decisions of two versions of documents. f is the configuration of the mesh, whose data directory
// contains the catalog. If f is nil, or the mesh has not run yet, only the calls that the documents mention are compared.
// Diff returns an error if the catalog can't be read.
func Diff(ctx context.Context, f *config.File, env config.Env, before, after []*policyv1.Document) (*policyv1.DiffRevisionsResponse, error) {
	if f == nil {
		d := &differ{cfg: baseConfig(new(config.Default()))}
		d.settings = func(string) catalog.Settings { return catalog.Settings{} }
		return d.diff(ctx, before, after, nil), nil
	}
	d := &differ{cfg: baseConfig(f)}
	d.cfg.Servers = make(map[string]catalog.Settings, len(f.Servers))
	for name, server := range f.Servers {
		d.cfg.Servers[name] = catalog.Settings{Trusted: server.Trusted}
	}
	for _, t := range f.Auth.Tokens {
		d.cfg.Tokens = append(d.cfg.Tokens, &identityv1.TokenRecord{Token: tokenOf(f, t)})
	}
	d.settings = func(server string) catalog.Settings { return d.cfg.Servers[server] }
	source, err := f.Stores.Policy.Resolve(f, env)
	switch {
	case err != nil:
		return nil, err
	case source != sqlstore.SQLite:
		return nil, errors.New("the catalog is in PostgreSQL: add --live, so that the running mesh compares the documents")
	}
	file := filepath.Join(f.Path(f.Data), "policy", "catalogue.db")
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		if d.servers, err = store.Servers(ctx, file); err != nil {
			return nil, err
		}
	}
	return d.diff(ctx, before, after, nil), nil
}

// differ compares the decisions of two versions of documents.
type differ struct {
	cfg      Config
	servers  map[string]*catalog.Server
	settings func(server string) catalog.Settings

	before, after              *engine.Set
	oldDocuments, newDocuments []engine.Document
	documents                  []engine.Document // of both versions
	out                        *policyv1.DiffRevisionsResponse
	flips                      map[string]*policyv1.Flip
}

// diff compares two versions of documents. It observes only what the documents observe, not what the configuration does.
func (d *differ) diff(ctx context.Context, before, after []*policyv1.Document, recorded []*policyv1.RecordedCall) *policyv1.DiffRevisionsResponse {
	now := time.Now()
	d.out, d.flips = &policyv1.DiffRevisionsResponse{Servers: int32(len(d.servers))}, make(map[string]*policyv1.Flip)
	old, problems := parseFor(before, now)
	next, further := parseFor(after, now)
	if d.out.Findings = slices.Concat(problems, further); len(d.out.GetFindings()) > 0 {
		return d.out
	}
	var err error
	d.before, d.after, err = engine.CompilePair(old, next, engine.Options{
		SessionCap: d.cfg.SessionCap, Times: engine.Times{Decide: d.cfg.Decide, Execute: d.cfg.Execute}, Now: now,
	})
	if err != nil {
		d.out.Findings = findings(err)
		return d.out
	}
	d.oldDocuments, d.newDocuments, d.documents = old, next, slices.Concat(old, next)
	d.compareRecorded(ctx, recorded)
	d.compareMentioned(ctx)
	d.finish()
	return d.out
}

func parseFor(documents []*policyv1.Document, now time.Time) ([]engine.Document, []*policyv1.Finding) {
	set, err := document.ParseSet(filesOf(documents), nil, now)
	if err != nil {
		return nil, findings(err)
	}
	return set.Documents, nil
}

// A diffCall is a call that is compared.
type diffCall struct {
	engine.Call
	// pattern and serverPattern are set if the names are examples.
	pattern, serverPattern string
	// anyCaller reports whether the caller is an example of the callers that no document mentions.
	anyCaller bool
	// recorded is the recorded call; nil if the call was generated.
	recorded *policyv1.RecordedCall
	// definition is the digest of the tool's definition, and after are the facts about it after the change, if the catalog
	// changes. after is nil if documents are compared.
	definition []byte
	after      *engine.Facts
}

// factsAfter returns the facts about the tool after the change.
func (c *diffCall) factsAfter() *engine.Facts {
	if c.after == nil {
		return &c.Facts
	}
	return c.after
}

// compareMentioned compares the calls of the tools in the catalog, and the calls that documents mention, by each caller.
func (d *differ) compareMentioned(ctx context.Context) {
	callers, configured := d.callers()
	for _, server := range d.serverNames() {
		for call := range d.callsOf(server) {
			for i := range callers {
				if ctx.Err() != nil || d.out.GetCompared() >= maxDiffCalls || len(d.flips) >= maxComparedFlips {
					d.out.EndedEarly = true
					return
				}
				call.Subject, call.anyCaller = callers[i], i == 0
				if i == 0 || i > configured || call.pattern != "" || call.serverPattern != "" {
					d.out.Generated++
				}
				d.compare(&call)
			}
		}
	}
}

// callers returns the callers whose calls are compared: first an example of the callers that no document mentions, then
// those of the configured tokens, whose number it also returns, then those that documents mention.
func (d *differ) callers() (out []engine.Subject, configured int) {
	agents := d.cfg.approvers(d.cfg.OwnerMayApprove).Callers
	known := agents[:min(len(agents), maxDiffCallers)]
	mentioned, complete := engine.MentionedCallers(d.documents, maxDiffCallers-len(known))
	d.out.EndedEarly = d.out.GetEndedEarly() || !complete || len(known) < len(agents)
	out = mentioned[:1:1]
	for _, agent := range known {
		out = append(out, engine.Subject{Caller: agent.Principal})
	}
	return append(out, mentioned[1:]...), len(known)
}

// serverNames returns the servers that are configured, in the catalog, or named in the documents. If no server is
// configured, it adds examples of the patterns in the documents.
func (d *differ) serverNames() []engine.Mention {
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

// callsOf returns the calls of a server, without a caller.
func (d *differ) callsOf(server engine.Mention) iter.Seq[diffCall] {
	return func(yield func(diffCall) bool) {
		listed := make(map[string]bool)
		if known := d.servers[server.Name]; known != nil {
			for _, name := range slices.Sorted(maps.Keys(known.Tools)) {
				if listedNow(known, known.Tools[name]) {
					listed[name] = true
					if !yield(diffCall{Call: engine.Call{Server: server.Name, Tool: name, Facts: d.facts(server.Name, name, nil)}, serverPattern: server.Pattern}) {
						return
					}
				}
			}
		}
		classes, complete := engine.PossibleClasses(d.documents, server.Name, maxDiffTags)
		d.out.EndedEarly = d.out.GetEndedEarly() || !complete
		for _, m := range engine.MentionedCalls(d.documents, server.Name) {
			if listed[m.Name] && m.Method == "" {
				continue
			}
			call := diffCall{
				Call:    engine.Call{Server: server.Name, Method: m.Method, Ref: m.Ref, Tool: m.Name},
				pattern: m.Pattern, serverPattern: server.Pattern,
			}
			of := classes
			if !call.OfTool() {
				of = classes[:1]
			}
			for _, call.Facts = range of {
				if !yield(call) {
					return
				}
			}
		}
	}
}

// facts returns the facts about a tool as if its definition were accepted, because documents are compared and not the
// catalog. The newest accepted definition is used if the digest is not known.
func (d *differ) facts(server, tool string, digest []byte) engine.Facts {
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

// compareRecorded compares recorded calls. The journal does not record groups, so a caller has the groups of the
// configured token with the same tenant, subject and agent.
func (d *differ) compareRecorded(ctx context.Context, recorded []*policyv1.RecordedCall) {
	groups := make(map[[3]string][]string)
	for _, r := range d.cfg.Tokens {
		t := r.GetToken()
		groups[[3]string{t.GetTenant(), t.GetSubject(), t.GetAgent()}] = t.GetGroups()
	}
	for _, r := range recorded {
		if ctx.Err() != nil {
			d.out.EndedEarly = true
			return
		}
		subject, err := unpackSubject(r.GetSubject())
		if err != nil {
			continue // the gateway records no such caller
		}
		own := func(p *engine.Principal) { p.Groups = groups[[3]string{p.Tenant, p.Name, p.Agent}] }
		own(&subject.Caller)
		for i := range subject.Chain {
			own(&subject.Chain[i])
		}
		c := r.GetCall()
		call := diffCall{Call: engine.Call{Method: c.GetMethod(), Server: c.GetServer(), Tool: c.GetName(), Ref: c.GetRef(), Subject: subject}, recorded: r}
		call.Facts = engine.Facts{Status: engine.Callable}
		if call.OfTool() {
			call.Method = "" // as in generated calls, so that both become one flip
			call.Facts = d.facts(c.GetServer(), c.GetName(), c.GetDefinitionDigest())
		}
		d.compare(&call)
	}
}

// compare compares the decisions on a call, and adds the changes to the flips.
func (d *differ) compare(call *diffCall) {
	changes, complete := engine.Compare(d.before, d.after, call.Call)
	d.out.Compared++
	if !complete {
		d.out.Uncertain++
	}
	for i := range changes {
		d.add(call, &changes[i])
	}
}

// add adds a change. Changes that differ only by the caller become one flip.
func (d *differ) add(call *diffCall, c *engine.Change) {
	flip := &policyv1.Flip{
		Call:    &policyv1.Call{Method: call.Method, Server: call.Server, Name: call.Tool, Ref: call.Ref, DefinitionDigest: call.definition},
		Pattern: call.pattern, ServerPattern: call.serverPattern, Kind: kindOf(c), InvalidArguments: c.InvalidArguments,
		Before: d.pack(d.before, &c.Before, &call.Facts), After: d.pack(d.after, &c.After, call.factsAfter()),
	}
	for _, a := range c.Assumptions {
		flip.Conditions = append(flip.Conditions, &policyv1.AssumedCondition{Condition: a.Condition, Result: conditionResults[a.Result]})
	}
	key := flipKey(flip)
	known := d.flips[key]
	if known == nil {
		d.flips[key], known = flip, flip
		known.Subject = packSubject(&call.Subject)
		known.AnyCaller = call.anyCaller
	} else if len(known.GetFurtherSubjects()) < maxFlipSubjects {
		known.FurtherSubjects = append(known.FurtherSubjects, packSubject(&call.Subject))
	}
	known.AnyCaller = known.GetAnyCaller() || call.anyCaller
	known.Subjects++
	if call.recorded != nil {
		known.Calls += call.recorded.GetCount()
		known.DecisionId = cmp.Or(known.GetDecisionId(), call.recorded.GetDecisionId())
	}
}

// flipKey returns a string that is equal for flips that differ only by their callers.
func flipKey(f *policyv1.Flip) string {
	decision := func(d *policyv1.Decision) string {
		parts := []any{d.GetEffect(), d.GetHidden(), d.GetRule().String(), d.GetObserved() != nil, d.GetApproval().String()}
		for _, l := range d.GetLimits() {
			parts = append(parts, l.GetLimit().GetMax(), l.GetLimit().GetWindow().AsDuration(), l.GetPer(), l.GetCap())
		}
		return fmt.Sprint(parts...)
	}
	return fmt.Sprintf("%q", []any{f.GetCall().String(), f.GetPattern(), f.GetServerPattern(), decision(f.GetBefore()), decision(f.GetAfter()), fmt.Sprint(f.GetConditions()), f.GetInvalidArguments()})
}

func (*differ) pack(set *engine.Set, decision *engine.Decision, facts *engine.Facts) *policyv1.Decision {
	return packDecision(&activeSet{revision: set.Revision()}, *decision, facts)
}

func packSubject(s *engine.Subject) *identityv1.Principal {
	out := packPrincipal(&s.Caller)
	for i := range s.Chain {
		out.Chain = append(out.Chain, packPrincipal(&s.Chain[i]))
	}
	return out
}

func packPrincipal(p *engine.Principal) *identityv1.Principal {
	return &identityv1.Principal{Tenant: p.Tenant, Subject: p.Name, Agent: p.Agent, Owner: p.Owner, Groups: p.Groups}
}

func kindOf(c *engine.Change) policyv1.FlipKind {
	switch {
	case c.Opens():
		return policyv1.FlipKind_FLIP_KIND_OPENS
	case c.Closes():
		return policyv1.FlipKind_FLIP_KIND_CLOSES
	}
	return policyv1.FlipKind_FLIP_KIND_TERMS
}

// finish sorts the flips, and sets the totals.
func (d *differ) finish() {
	keys := slices.SortedFunc(maps.Keys(d.flips), func(first, second string) int {
		a, b := d.flips[first], d.flips[second]
		return cmp.Or(cmp.Compare(orderOf(a), orderOf(b)), cmp.Compare(b.GetCalls(), a.GetCalls()), cmp.Compare(a.GetCall().GetServer(), b.GetCall().GetServer()),
			cmp.Compare(a.GetCall().GetMethod(), b.GetCall().GetMethod()), cmp.Compare(a.GetCall().GetName(), b.GetCall().GetName()), cmp.Compare(first, second))
	})
	all := make([]*policyv1.Flip, len(keys))
	for i, key := range keys {
		all[i] = d.flips[key]
	}
	for _, f := range all {
		if f.GetKind() == policyv1.FlipKind_FLIP_KIND_OPENS {
			d.out.Opened++
		}
	}
	d.out.Total = int64(len(all))
	d.out.MayOpen = d.mayOpen(all)
	size := 0
	for _, f := range all[:min(len(all), maxFlips)] {
		if size += proto.Size(f); size > maxFlipBytes {
			break
		}
		d.out.Flips = append(d.out.Flips, f)
	}
}

// mayOpen returns the rules whose change may open calls, but which decide in none of the flips that open calls. Calls by
// all combinations of names and groups can't be compared.
func (d *differ) mayOpen(flips []*policyv1.Flip) (out []*policyv1.RuleRef) {
	shown := make(map[string]bool)
	for _, f := range flips {
		if f.GetKind() == policyv1.FlipKind_FLIP_KIND_OPENS {
			for _, r := range []*policyv1.RuleRef{f.GetBefore().GetRule(), f.GetAfter().GetRule()} {
				shown[r.GetDocument()+"/"+r.GetRule()] = true
			}
		}
	}
	for _, r := range engine.MayOpen(d.oldDocuments, d.newDocuments) {
		if !shown[r.String()] {
			out = append(out, &policyv1.RuleRef{Document: r.Document, Rule: r.Rule})
		}
	}
	return out
}

// orderOf orders flips: deny to allow, deny to approval, approval to allow, other terms, and then calls that are closed.
func orderOf(f *policyv1.Flip) int {
	denied := f.GetBefore().GetEffect() == policyv1.Effect_EFFECT_DENY
	allowed := f.GetAfter().GetEffect() == policyv1.Effect_EFFECT_ALLOW
	switch {
	case f.GetKind() != policyv1.FlipKind_FLIP_KIND_OPENS:
		return int(f.GetKind()) + 10
	case denied && allowed:
		return 0
	case denied:
		return 1
	}
	return 2
}

var conditionResults = map[condition.Result]policyv1.ConditionResult{
	condition.True:   policyv1.ConditionResult_CONDITION_RESULT_TRUE,
	condition.False:  policyv1.ConditionResult_CONDITION_RESULT_FALSE,
	condition.Failed: policyv1.ConditionResult_CONDITION_RESULT_FAILED,
}
