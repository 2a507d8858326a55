package policy

import (
	"bytes"
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// DiffCatalog implements policyv1.PolicyServiceServer.
func (s *Service) DiffCatalog(req *policyv1.DiffCatalogRequest, stream grpc.ServerStreamingServer[policyv1.DiffCatalogResponse]) error {
	ctx := stream.Context()
	caller := authn.CallerOf(ctx)
	if !mayReadDocuments(caller) {
		return toStatus(errOtherTenant)
	}
	limited, end, err := s.beginDiff(ctx)
	if err != nil {
		return toStatus(err)
	}
	defer end()
	set, err := s.current(ctx)
	switch {
	case err != nil:
		return toStatus(err)
	case set == nil:
		return toStatus(errNoPolicy)
	case set.stored != nil && set.stored.Number == 0:
		return toStatus(errNothingApplied)
	case set.stored != nil && set.rejected != nil:
		return toStatus(errActiveInvalid)
	}
	changes := &catalogChanges{before: set.catalog.servers, after: make(map[string]*catalog.Server), settings: s.settings}
	if err := changes.apply(req, caller.Person.GetSubject()); err != nil {
		return toStatus(err)
	}
	d, err := s.newCatalogDiffer(limited, set, changes)
	if err != nil {
		return toStatus(err)
	}
	err = d.diff(limited, limitSends(limited, func(flips []*policyv1.Flip, totals *policyv1.DiffTotals) error {
		return stream.Send(&policyv1.DiffCatalogResponse{Flips: flips, Totals: totals})
	}))
	if err != nil {
		return toStatus(err)
	}
	return ctx.Err()
}

// catalogChanges applies the changes in a request to copies of servers.
type catalogChanges struct {
	before, after map[string]*catalog.Server // after contains only servers that change
	settings      func(server string) catalog.Settings
}

// apply applies all changes in a request.
func (c *catalogChanges) apply(req *policyv1.DiffCatalogRequest, operator string) error {
	if len(req.GetOverrides())+len(req.GetDefinitions()) == 0 && !req.GetAllWaiting() {
		return errChangeRequired
	}
	by := catalog.ChangeInfo{Operator: cmp.Or(operator, "operator"), Time: time.Now()}
	if req.GetAllWaiting() {
		for name, server := range c.before {
			if next := server.AcceptFlagged(by); next != server && c.settings(name).Mode != catalog.Off {
				c.after[name] = next
			}
		}
	}
	for _, change := range req.GetDefinitions() {
		if err := c.accept(change, by); err != nil {
			return err
		}
	}
	for _, change := range req.GetOverrides() {
		if err := c.override(change, by); err != nil {
			return err
		}
	}
	return nil
}

// server returns a server after the changes that have been applied so far.
func (c *catalogChanges) server(name string) (*catalog.Server, error) {
	server := cmp.Or(c.after[name], c.before[name])
	if server == nil {
		return nil, unknownServer(name)
	}
	return server, nil
}

func (c *catalogChanges) accept(change *policyv1.DefinitionChange, by catalog.ChangeInfo) error {
	server, err := c.server(change.GetServer())
	switch {
	case err != nil:
		return err
	case c.settings(change.GetServer()).Mode == catalog.Off:
		return errPinningOff
	case len(change.GetDefinitionDigest()) > 0:
		return c.decide(change.GetServer(), change.GetTool(), digestOf(change.GetDefinitionDigest()), by)
	case server.Tools[change.GetTool()] == nil:
		return catalog.UnknownTool(change.GetTool())
	}
	waiting := c.before[change.GetServer()].Tools[change.GetTool()].Waiting()
	if len(waiting) == 0 {
		return errNoneWaits
	}
	for _, digest := range waiting {
		if err := c.decide(change.GetServer(), change.GetTool(), digest, by); err != nil {
			return err
		}
	}
	return nil
}

func (c *catalogChanges) decide(server, tool string, digest catalog.Digest, by catalog.ChangeInfo) error {
	state, err := c.server(server)
	if err != nil {
		return err
	}
	next, err := state.Decide(tool, digest, catalog.Accepted, by)
	if err == nil {
		c.after[server] = next
	}
	return err
}

func (c *catalogChanges) override(change *policyv1.OverrideChange, by catalog.ChangeInfo) error {
	state, err := c.server(change.GetServer())
	if err != nil {
		return err
	}
	tool := state.Tools[change.GetTool()]
	if tool == nil {
		return catalog.UnknownTool(change.GetTool())
	}
	var o *catalog.Override
	if change.GetCategory() != 0 || change.GetRisk() != 0 || len(change.GetTags()) > 0 {
		o = &catalog.Override{Category: change.GetCategory(), Risk: change.GetRisk(), Tags: change.GetTags(), Author: by.Operator, Time: by.Time}
	}
	next, err := state.SetOverride(change.GetTool(), o, tool.Etag())
	if err == nil {
		c.after[change.GetServer()] = next
	}
	return err
}

// A changedTool identifies a tool that changes.
type changedTool struct{ server, name string }

// tools returns the tools that change, sorted by server and name.
func (c *catalogChanges) tools() (out []changedTool) {
	for _, server := range slices.Sorted(maps.Keys(c.after)) {
		for _, name := range slices.Sorted(maps.Keys(c.after[server].Tools)) {
			if c.after[server].Tools[name] != c.before[server].Tools[name] {
				out = append(out, changedTool{server, name})
			}
		}
	}
	return out
}

// calls returns the calls to a tool that are compared, without callers. There is one call for each definition of the
// tool, and one more if calls with an unknown definition are allowed. Quarantines are ignored, because a quarantine can
// end while the tool's classification remains the same.
func (c *catalogChanges) calls(tool changedTool) (out []diffCall) {
	settings := c.settings(tool.server)
	facts := func(server *catalog.Server, digest []byte) engine.Facts {
		return server.WithoutQuarantine(tool.name).Facts(tool.name, digest, settings)
	}
	var digests [][]byte
	for i := range c.after[tool.server].Tools[tool.name].Definitions {
		digests = append(digests, c.after[tool.server].Tools[tool.name].Definitions[i].Digest[:])
	}
	slices.SortFunc(digests, bytes.Compare)
	if settings.Mode == catalog.Off {
		digests = append(digests, nil)
	}
	for _, digest := range digests {
		after := facts(c.after[tool.server], digest)
		call := diffCall{Call: engine.Call{Server: tool.server, Tool: tool.name, Facts: facts(c.before[tool.server], digest)}, definition: digest, after: &after}
		out = append(out, call)
	}
	return out
}

// catalogDiffer compares the decisions by the active documents before and after changes to the catalog.
type catalogDiffer struct {
	differ

	changes  *catalogChanges
	comparer *engine.FactsComparer
	mayOpen  map[engine.RuleRef]bool
}

// newCatalogDiffer compiles the active documents in the same way as DiffRevisions. Therefore it ignores emergency
// stops, and it ignores observe mode if the configuration sets it for a server.
func (s *Service) newCatalogDiffer(ctx context.Context, set *activeSet, changes *catalogChanges) (*catalogDiffer, error) {
	cfg, now := s.cfg, time.Now()
	cfg.People = *s.holders.Load()
	d := &catalogDiffer{
		differ:  differ{cfg: cfg, totals: new(policyv1.DiffTotals), clock: s.newDiffClock(maxDiffWork)},
		changes: changes, mayOpen: make(map[engine.RuleRef]bool),
	}
	defer d.clock.pause()
	if err := d.clock.resume(ctx); err != nil {
		return nil, err
	}
	documents, problems := parseFor(set.documents, now)
	if len(problems) > 0 {
		return nil, errActiveInvalid
	}
	compiled, err := engine.Compile(documents, engine.Options{
		SessionCap: s.cfg.SessionCap, Times: engine.Times{Decide: s.cfg.Decide, Execute: s.cfg.Execute}, Now: now,
	})
	if err != nil {
		return nil, err
	}
	d.documents, d.before, d.after = documents, compiled, compiled
	d.comparer = engine.NewFactsComparer(compiled, documents)
	d.findCallers()
	return d, nil
}

// diff compares the calls. It sends the flips, which are the calls whose result changes, and the totals.
func (d *catalogDiffer) diff(ctx context.Context, send flipSender) error {
	tools := d.changes.tools()
	d.totals.Tools = int64(len(tools))
	stream := newFlipStream(d.totals, send)
	if err := d.sendFlips(ctx, stream, d.calls(tools), d.compare); err != nil {
		return err
	}
	return stream.finish(slices.SortedFunc(maps.Keys(d.mayOpen), func(a, b engine.RuleRef) int { return cmp.Compare(a.String(), b.String()) }))
}

// calls yields the calls to the given tools, once for each caller.
func (d *catalogDiffer) calls(tools []changedTool) iter.Seq[*diffCall] {
	return func(yield func(*diffCall) bool) {
		for _, tool := range tools {
			for _, target := range d.changes.calls(tool) {
				for call := range d.byCallers(target) {
					if !yield(call) {
						return
					}
				}
			}
		}
	}
}

func (d *catalogDiffer) compare(call *diffCall) ([]engine.Change, bool) {
	if call.anyCaller { // the result does not depend on the caller
		for _, r := range d.comparer.MayOpen(call.Call, *call.after) {
			d.mayOpen[r] = true
		}
	}
	return d.comparer.Compare(call.Call, *call.after)
}
