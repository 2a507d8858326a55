package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// Errors of reports.
var (
	errList      = errors.New("this is not a list of tools")
	errTooLong   = fmt.Errorf("the list has more than %d tools or %d MiB", MaxTools, MaxList>>20)
	errDuplicate = errors.New("the list names a tool twice")
	errKept      = errors.New("only stored definitions can be compared")
)

// maxLogged is the largest number of tool names in one log line.
const maxLogged = 10

// maxLeftName is the largest length of the name of an entry that is left out, in bytes.
const maxLeftName = 128

// maxReports is how many reports are read at a time, of callers' lists and separately of the gateways' own, each up to
// [MaxList] bytes. maxReportsEach is how many of them one owner may have.
const (
	maxReports     = 8
	maxReportsEach = 2
)

// catalogue implements policyv1.CatalogServiceServer.
type catalogue struct {
	policyv1.UnimplementedCatalogServiceServer
	*Service
}

// ReportTools implements policyv1.CatalogServiceServer. Reading definitions takes as long as thousands of calls, so
// only a few lists are read at a time, and fewer for each principal; a gateway's own lists are counted for each
// server. While a report arrives it does not hold one of those slots, because its sender may be slow, but one of a
// larger number that bounds the memory in use.
func (c catalogue) ReportTools(stream reports) error {
	ctx := stream.Context()
	head, err := receiveHead(stream)
	if err != nil {
		return toStatus(err)
	}
	who := authn.CallerOf(ctx).Principal
	own := who.GetTenant() == home && who.GetSubject() == principal.Catalogue
	share := owner{who.GetTenant(), who.GetSubject()}
	if own {
		share.name += " " + head.GetServer()
	}
	if head.GetWhole() && !own {
		return toStatus(fmt.Errorf("%w: only the gateway's own is whole", errList))
	}
	turns := c.reports
	if own {
		turns = c.whole
	}
	read, err := turns.Take(ctx, share)
	if err != nil {
		return err
	}
	defer read()
	tools, err := receive(stream)
	if err != nil {
		return toStatus(err)
	}
	done, err := c.lists.Take(ctx, share)
	if err != nil {
		return err
	}
	defer done()
	report := catalog.Report{Version: head.GetProtocolVersion(), Whole: head.GetWhole(), LeftOut: head.GetLeftOut()}
	if !own {
		report.To = seenBy(who)
	}
	places, err := readTools(ctx, tools, &report)
	if err != nil {
		return err
	}
	states, err := c.report(ctx, head.GetServer(), report)
	if err != nil {
		return toStatus(err)
	}
	resp := &policyv1.ReportToolsResponse{Activation: c.active.Load().activation()}
	off := c.settings(head.GetServer()).Mode == catalog.Off
	for i := range tools {
		said := new(policyv1.ReportedTool)
		if place, read := places[i]; read {
			said.DefinitionDigest, said.Pin = report.Tools[place].Digest[:], packState(states[place], off)
		}
		resp.Tools = append(resp.Tools, said)
	}
	return stream.SendAndClose(resp)
}

// readTools adds the tools to a report, and the names of those that can't be read to its LeftOut. It returns the
// indexes in the report by the indexes in the list.
func readTools(ctx context.Context, tools []*policyv1.ToolDefinition, report *catalog.Report) (map[int]int, error) {
	places := make(map[int]int, len(tools))
	for i, t := range tools {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		listed, err := catalog.Read(t.GetName(), t.GetDefinitionJson())
		if err != nil { // such a definition has no classification
			report.LeftOut = append(report.LeftOut, cut(t.GetName(), maxLeftName))
			continue
		}
		places[i] = len(report.Tools)
		report.Tools = append(report.Tools, listed)
	}
	return places, nil
}

func seenBy(p *identityv1.Principal) string { return p.GetTenant() + "/" + p.GetSubject() }

type reports = grpc.ClientStreamingServer[policyv1.ReportToolsRequest, policyv1.ReportToolsResponse]

func receiveHead(stream reports) (*policyv1.ReportHead, error) {
	part, err := stream.Recv()
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case part.GetHead() == nil:
		return nil, fmt.Errorf("%w: it does not begin with its head", errList)
	default:
		return part.GetHead(), nil
	}
}

// receive reads the tools of a report.
func receive(stream reports) (tools []*policyv1.ToolDefinition, err error) {
	size := 0
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return tools, nil
		case err != nil:
			return nil, err
		case part.GetHead() != nil:
			return nil, fmt.Errorf("%w: it has two heads", errList)
		}
		tools = append(tools, part.GetTool())
		if size += len(part.GetTool().GetDefinitionJson()); len(tools) > MaxTools || size > MaxList {
			return nil, errTooLong
		}
	}
}

// report applies a server's list and returns the states of its definitions. It does not touch the store if nothing has
// changed.
func (s *Service) report(ctx context.Context, server string, r catalog.Report) ([]catalog.State, error) {
	settings := s.settings(server)
	twice := catalog.Twice(r.Tools)
	if twice != "" && r.To != "" { // the list belongs to one session, and stops no other
		return nil, fmt.Errorf("%w: %q", errDuplicate, twice)
	}
	if before := s.active.Load().known.servers[server]; before != nil && twice == "" {
		out, err := before.Report(r, settings, time.Now(), func(catalog.Digest) (string, error) { return "", errKept })
		if err == nil && out.Server == before {
			return out.States, nil
		}
	}
	var states []catalog.State
	var news []string
	after, version, err := s.store.Change(ctx, server, settings.Trusted, func(tx *sqlstore.Tx, before *catalog.Server, text func(catalog.Digest) (string, error)) (store.Change, error) {
		if twice != "" {
			return store.Change{Server: before.StopFor(twice, tx.Now)}, nil
		}
		out, err := before.Report(r, settings, tx.Now, text)
		if err != nil {
			return store.Change{}, err
		}
		states, news = out.States, nil
		if settings.Mode != catalog.Off {
			news = before.NewlyWaiting(out.Server)
		}
		change := store.Change{Server: out.Server, New: make(map[catalog.Digest]string, len(out.New)), Gone: out.Gone}
		for _, i := range out.New {
			change.New[r.Tools[i].Digest] = r.Tools[i].Text
		}
		return change, nil
	})
	if err != nil {
		return nil, err
	}
	if len(news) > 0 && version != 0 {
		s.deps.Log.WarnContext(ctx, "definitions of tools are new or have changed; the tools can't be called until an operator accepts them",
			"server", server, "tools", strings.Join(news[:min(len(news), maxLogged)], ", "), "waiting", len(news), "do", "sluice catalog diff "+server)
	}
	s.publish(ctx, version, after)
	if err := s.settle(ctx, s.active.Load()); err != nil {
		return nil, err
	}
	if twice != "" {
		return nil, fmt.Errorf("%w: %q", errDuplicate, twice)
	}
	return states, nil
}
