package policy

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// maxAccessTools limits the number of tools that are evaluated for one page of the response. Tools that the caller may
	// not see count too.
	maxAccessTools = 2_000
	// accessBlock is the number of tools in a block. A page token says how many blocks to skip. maxAccessTools is a
	// multiple of accessBlock.
	accessBlock = 500
)

// ListAccess implements policyv1.PolicyServiceServer. It uses the same slots as [Service.FilterTools].
func (s *Service) ListAccess(ctx context.Context, req *policyv1.ListAccessRequest) (*policyv1.ListAccessResponse, error) {
	set, subject, err := s.resolve(ctx, "", req.GetSubject())
	if err != nil {
		return nil, toStatus(err)
	}
	done, err := s.listSlots.Acquire(ctx, callerOwner(ctx))
	if err != nil {
		return nil, err
	}
	defer done()
	a := &accessLister{Service: s, set: set, subject: subject, withhold: !mayReadDocuments(authn.CallerOf(ctx)), size: cmp.Or(int(req.GetPageSize()), defaultPageSize)}
	if req.GetServer() == "" {
		return a.servers(ctx, req.GetPageToken())
	}
	return a.tools(ctx, req.GetServer(), req.GetPageToken())
}

// accessLister lists the calls that one principal may make.
type accessLister struct {
	*Service

	set     *activeSet
	subject engine.Subject
	// withhold is true if the caller may not see conditions, and may not see tools that are hidden from the principal.
	withhold bool
	size     int
}

// servers returns the summaries of the servers after a page token. If the page has no room for all tools of the last
// server, the next page continues with this server.
func (a *accessLister) servers(ctx context.Context, token string) (*policyv1.ListAccessResponse, error) {
	resp := &policyv1.ListAccessResponse{PolicyRevision: a.set.Revision()}
	names := slices.Collect(maps.Keys(a.set.catalog.servers))
	names = slices.AppendSeq(names, maps.Keys(a.cfg.Servers))
	slices.Sort(names)
	after, skip, continues, err := parseAccessToken(token)
	if err != nil {
		return nil, err
	}
	left, last := maxAccessTools, ""
	for _, name := range slices.Compact(names) {
		if name < after || name == after && !continues || !a.mayKnow(name) {
			continue
		}
		if len(resp.GetServers()) == a.size || left < accessBlock {
			resp.NextPageToken = last
			break
		}
		tools := a.listed(name)
		if name != after {
			skip = 0
		}
		from := min(skip*accessBlock, len(tools))
		to := min(from+left/accessBlock*accessBlock, len(tools))
		summary, err := a.summary(ctx, name, tools[from:to])
		if err != nil {
			return nil, err
		}
		resp.Servers = append(resp.Servers, summary)
		left -= to - from
		if last = name; to < len(tools) {
			resp.NextPageToken = accessToken(name, to/accessBlock)
			break
		}
	}
	return resp, nil
}

// accessToken returns the token for the page that begins after the given name and the given number of blocks. The token
// contains a number instead of a tool's name, so that it does not reveal names of tools that the caller may not see.
func accessToken(after string, blocks int) string { return after + " " + strconv.Itoa(blocks) }

// parseAccessToken parses a page token. The result continues is true if the token contains a number of blocks. The page
// then continues with the same server.
func parseAccessToken(token string) (after string, blocks int, continues bool, err error) {
	after, number, continues := strings.Cut(token, " ") // this is unambiguous, because names contain no spaces
	if !continues {
		return after, 0, false, nil
	}
	if blocks, err = strconv.Atoi(number); err != nil || blocks < 0 || blocks > catalog.MaxTools/accessBlock {
		return "", 0, false, toStatus(errPageToken)
	}
	return after, blocks, true, nil
}

// mayKnow reports whether the response may mention a server. If the caller is outside the tenant "default", the
// response omits servers on which the principal in the request can neither call nor list any tool.
func (a *accessLister) mayKnow(server string) bool {
	if !a.withhold {
		return true
	}
	access := a.set.Access(a.subject, server)
	return access.CouldAllow || access.CouldList
}

// tools returns the calls that the principal may make to the tools of a server after a page token.
func (a *accessLister) tools(ctx context.Context, server, token string) (*policyv1.ListAccessResponse, error) {
	_, configured := a.cfg.Servers[server]
	if !configured && a.set.catalog.servers[server] == nil || !a.mayKnow(server) {
		return nil, toStatus(unknownServer(server))
	}
	after, skip, _, err := parseAccessToken(token)
	if err != nil {
		return nil, err
	}
	resp := &policyv1.ListAccessResponse{PolicyRevision: a.set.Revision()}
	names := a.listed(server)
	first, found := slices.BinarySearch(names, after)
	if found {
		first++
	}
	names = names[min(first+skip*accessBlock, len(names)):]
	for i, name := range names {
		if n := len(resp.GetTools()); n == a.size || i == maxAccessTools {
			resp.NextPageToken = accessToken(after, skip+maxAccessTools/accessBlock)
			if n > 0 {
				resp.NextPageToken = resp.GetTools()[n-1].GetName()
			}
			break
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if tool := a.tool(server, name); tool != nil {
			resp.Tools = append(resp.Tools, tool)
		}
	}
	resp.Servers = []*policyv1.ServerAccess{a.summaryOf(server, resp.GetTools())}
	return resp, nil
}

// listed returns the sorted names of the tools that a server currently lists. If withhold is true, it omits tools that
// the server has listed only in sessions.
func (a *accessLister) listed(server string) []string {
	s := a.set.catalog.servers[server]
	if s == nil {
		return nil
	}
	listed := func(name string) bool {
		fromGateway := func(d catalog.Definition) bool { return d.ListedTo == "" }
		return listedNow(s, s.Tools[name]) && (!a.withhold || slices.ContainsFunc(s.Tools[name].Definitions, fromGateway))
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.Tools)), func(name string) bool { return !listed(name) })
}

// listedNow reports whether a server currently lists a tool. A tool counts as listed if the server's newest lists
// contain it. It also counts if the server listed it in a session less than an hour before the newest list. This is
// only approximate, because the time when a session last listed the tool can be stored up to an hour late.
func listedNow(s *catalog.Server, t *catalog.Tool) bool {
	if slices.ContainsFunc(t.Definitions, func(d catalog.Definition) bool { return len(d.WholeVersions) > 0 }) {
		return true
	}
	d := t.Newest()
	return d != nil && d.ListedTo != "" && newest(s.Lists).Sub(d.LastSeen) < time.Hour
}

// tool returns the calls that the principal may make to one tool, or nil if the caller may not see the tool.
func (a *accessLister) tool(server, name string) *policyv1.ToolAccess {
	s := a.set.catalog.servers[server]
	var digest []byte
	if d := s.Tools[name].Newest(); d != nil {
		digest = d.Digest[:]
	}
	access := a.set.ToolAccess(a.subject, server, name, a.facts(a.set, server, name, digest))
	if a.withhold && !access.Visible {
		return nil
	}
	out := packToolAccess(name, &access)
	if a.withhold {
		for _, c := range out.GetCases() {
			c.Condition = ""
		}
	}
	return out
}

// summary returns the summary for a server and the tools with the given names. It does not count tools that the caller
// may not see.
func (a *accessLister) summary(ctx context.Context, server string, names []string) (*policyv1.ServerAccess, error) {
	var tools []*policyv1.ToolAccess
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if tool := a.tool(server, name); tool != nil {
			tools = append(tools, tool)
		}
	}
	return a.summaryOf(server, tools), nil
}

// summaryOf returns the summary for a server. It counts the given tools by the outcome of their calls.
func (a *accessLister) summaryOf(server string, tools []*policyv1.ToolAccess) *policyv1.ServerAccess {
	s := a.set.catalog.servers[server]
	out := &policyv1.ServerAccess{
		Server: server, Listed: s != nil && len(s.Lists) > 0, CouldAllow: a.set.Access(a.subject, server).CouldAllow,
		Quarantined: s != nil && s.Quarantine != nil,
	}
	counts := make(map[policyv1.AccessOutcome]int32)
	for _, tool := range tools {
		counts[tool.GetOutcome()]++
	}
	for _, outcome := range slices.Sorted(maps.Keys(counts)) {
		out.Counts = append(out.Counts, &policyv1.OutcomeCount{Outcome: outcome, Tools: counts[outcome]})
	}
	for _, method := range methodsWithRule() {
		if a.set.CouldAllow(a.subject, server, method, s.ServerFacts()) {
			out.Methods = append(out.Methods, method)
		}
	}
	return out
}

// methodsWithRule returns the methods of requests, other than tools/call, that are denied unless a rule allows them.
func methodsWithRule() []string {
	exempt := append(mcpmethod.WithoutRule(), engine.MethodToolsCall)
	return slices.DeleteFunc(mcpmethod.All(), func(method string) bool {
		return mcpmethod.IsNotification(method) || slices.Contains(exempt, method)
	})
}

func packToolAccess(name string, a *engine.ToolAccess) *policyv1.ToolAccess {
	out := &policyv1.ToolAccess{Name: name, Outcome: outcomeOf(a), Visible: a.Visible, Incomplete: a.Incomplete}
	for _, c := range a.Cases {
		one := &policyv1.AccessCase{
			Effect: effects[c.Decision.Effect], Code: packCode(c.Decision.Code), Rule: packRule(c.Decision.Rule), Message: c.Decision.Message,
			Condition: c.Condition, Holds: c.Holds, ChainIndex: int32(c.Decision.ChainIndex),
		}
		if c.Decision.Approval != nil {
			one.Approval = packTerms(c.Decision.Approval)
		}
		for _, l := range c.Decision.Limits {
			one.Limits = append(one.Limits, packLimit(l))
		}
		out.Cases = append(out.Cases, one)
	}
	return out
}

func outcomeOf(a *engine.ToolAccess) policyv1.AccessOutcome {
	d := &a.Cases[0].Decision
	limited := func(c engine.AccessCase) bool { return len(c.Decision.Limits) > 0 }
	switch {
	case a.Depends():
		return policyv1.AccessOutcome_ACCESS_OUTCOME_DEPENDS
	case d.Effect == engine.Allow && slices.ContainsFunc(a.Cases, limited):
		return policyv1.AccessOutcome_ACCESS_OUTCOME_LIMITED
	case d.Effect == engine.Allow:
		return policyv1.AccessOutcome_ACCESS_OUTCOME_ALLOWED
	case d.Effect == engine.RequireApproval:
		return policyv1.AccessOutcome_ACCESS_OUTCOME_APPROVAL
	case d.Code == engine.ToolChanged:
		return policyv1.AccessOutcome_ACCESS_OUTCOME_CHANGED
	case d.Code == engine.ToolQuarantined:
		return policyv1.AccessOutcome_ACCESS_OUTCOME_QUARANTINED
	case d.Hidden:
		return policyv1.AccessOutcome_ACCESS_OUTCOME_HIDDEN
	}
	return policyv1.AccessOutcome_ACCESS_OUTCOME_DENIED
}
