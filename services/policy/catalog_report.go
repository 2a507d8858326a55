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

var (
	errInvalidList   = errors.New("this is not a list of tools")
	errTooLong       = fmt.Errorf("the list has more than %d tools or %d MiB", MaxTools, MaxList>>20)
	errDuplicateTool = errors.New("the list names a tool twice")
	errUnread        = errors.New("the store was not read, so the texts of stored definitions are missing")
)

const maxLogged = 10

// maxLeftOutName limits the length in bytes of a reported tool name if the tool can't be parsed. Longer names are
// shortened.
const maxLeftOutName = 128

// maxReports limits the number of reports, each of up to [MaxList] bytes, that are received at the same time. The limit
// applies separately to lists that callers requested and to lists that gateways requested for themselves.
// maxReportsEach limits the number of these reports for each owner.
const (
	maxReports     = 8
	maxReportsEach = 2
)

// catalogServer implements policyv1.CatalogServiceServer.
type catalogServer struct {
	policyv1.UnimplementedCatalogServiceServer
	*Service
}

// ReportTools implements policyv1.CatalogServiceServer.
//
// A report needs two slots. The first slot limits the memory for reports that are being received. Several reports can
// be received at a time, because a sender may be slow. The second slot is one of listSlots, because parsing the
// definitions in a list takes as long as evaluating thousands of calls. Each principal can use only some of the slots.
// For lists that gateways request for themselves, this limit applies to each server instead.
func (c catalogServer) ReportTools(stream reportStream) error {
	ctx := stream.Context()
	head, err := receiveHead(stream)
	if err != nil {
		return toStatus(err)
	}
	caller := authn.CallerOf(ctx).Principal
	own := caller.GetTenant() == homeTenant && caller.GetSubject() == principal.Catalogue
	slotOwner := owner{caller.GetTenant(), caller.GetSubject()}
	if own {
		slotOwner.name += " " + head.GetServer()
	}
	if head.GetWhole() && !own {
		return toStatus(fmt.Errorf("%w: only a list that a gateway requested itself may be whole", errInvalidList))
	}
	turns := c.callerReportSlots
	if own {
		turns = c.gatewayReportSlots
	}
	read, err := turns.Acquire(ctx, slotOwner)
	if err != nil {
		return err
	}
	defer read()
	tools, err := receive(stream)
	if err != nil {
		return toStatus(err)
	}
	done, err := c.listSlots.Acquire(ctx, slotOwner)
	if err != nil {
		return err
	}
	defer done()
	report := catalog.Report{Version: head.GetProtocolVersion(), Whole: head.GetWhole(), LeftOut: head.GetLeftOut()}
	if !own {
		report.To, report.OfPerson = reporterKey(caller), head.GetAccountOfPerson()
	}
	indexes, err := readTools(ctx, tools, &report)
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
		reported := new(policyv1.ReportedTool)
		if index, parsed := indexes[i]; parsed {
			reported.DefinitionDigest, reported.Pin = report.Tools[index].Digest[:], packState(states[index], off)
		}
		resp.Tools = append(resp.Tools, reported)
	}
	return stream.SendAndClose(resp)
}

// readTools parses the tools in a list and adds them to a report. If a tool can't be parsed, readTools adds its name to
// report.LeftOut. The result maps the index of each parsed tool in the list to its index in report.Tools.
func readTools(ctx context.Context, tools []*policyv1.ToolDefinition, report *catalog.Report) (map[int]int, error) {
	indexes := make(map[int]int, len(tools))
	for i, t := range tools {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		listed, err := catalog.ParseListed(t.GetName(), t.GetDefinitionJson())
		if err != nil { // a definition that can't be parsed can't be classified
			report.LeftOut = append(report.LeftOut, truncate(t.GetName(), maxLeftOutName))
			continue
		}
		indexes[i] = len(report.Tools)
		report.Tools = append(report.Tools, listed)
	}
	return indexes, nil
}

func reporterKey(p *identityv1.Principal) string { return p.GetTenant() + "/" + p.GetSubject() }

type reportStream = grpc.ClientStreamingServer[policyv1.ReportToolsRequest, policyv1.ReportToolsResponse]

func receiveHead(stream reportStream) (*policyv1.ReportHead, error) {
	part, err := stream.Recv()
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case part.GetHead() == nil:
		return nil, fmt.Errorf("%w: it does not begin with its head", errInvalidList)
	default:
		return part.GetHead(), nil
	}
}

// receive returns the tools in a report. The caller must already have received the head of the report.
func receive(stream reportStream) (tools []*policyv1.ToolDefinition, err error) {
	size := 0
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return tools, nil
		case err != nil:
			return nil, err
		case part.GetHead() != nil:
			return nil, fmt.Errorf("%w: it has two heads", errInvalidList)
		}
		tools = append(tools, part.GetTool())
		if size += len(part.GetTool().GetDefinitionJson()); len(tools) > MaxTools || size > MaxList {
			return nil, errTooLong
		}
	}
}

// report applies a server's list of tools to the catalog, and returns the state of each definition in the list. If the
// list contains no changes, report does not use the store.
func (s *Service) report(ctx context.Context, server string, r catalog.Report) ([]catalog.State, error) {
	settings := s.settings(server)
	duplicate := catalog.FindDuplicate(r.Tools)
	// A list that was requested in a session is only refused. The server is not quarantined, because other sessions are
	// not affected.
	if duplicate != "" && r.To != "" {
		return nil, fmt.Errorf("%w: %q", errDuplicateTool, duplicate)
	}
	if before := s.active.Load().catalog.servers[server]; before != nil && duplicate == "" {
		out, err := before.Report(r, settings, time.Now(), func(catalog.Digest) (string, error) { return "", errUnread })
		if err == nil && out.Server == before {
			return out.States, nil
		}
	}
	var states []catalog.State
	var newlyWaiting []string
	after, version, err := s.store.Change(ctx, server, settings.Trusted, func(tx *sqlstore.Tx, before *catalog.Server, text func(catalog.Digest) (string, error)) (store.Change, error) {
		if duplicate != "" {
			return store.Change{Server: before.QuarantineDuplicate(duplicate, tx.Now)}, nil
		}
		out, err := before.Report(r, settings, tx.Now, text)
		if err != nil {
			return store.Change{}, err
		}
		states, newlyWaiting = out.States, nil
		if settings.Mode != catalog.Off {
			newlyWaiting = before.NewlyWaiting(out.Server)
		}
		change := store.Change{Server: out.Server, New: make(map[catalog.Digest]string, len(out.New)), Removed: out.Removed}
		for _, i := range out.New {
			change.New[r.Tools[i].Digest] = r.Tools[i].Text
		}
		return change, nil
	})
	if err != nil {
		return nil, err
	}
	if len(newlyWaiting) > 0 && version != 0 {
		s.deps.Log.WarnContext(ctx, "definitions of tools are new or have changed; the tools can't be called until an operator accepts them",
			"server", server, "tools", strings.Join(newlyWaiting[:min(len(newlyWaiting), maxLogged)], ", "), "waiting", len(newlyWaiting), "do", "sluice catalog diff "+server)
	}
	s.publish(ctx, version, after)
	if version == 0 && s.cfg.Source != sqlstore.SQLite { // the list may already be stored by another process
		s.reading.Forget("") // a read that has already begun may miss this list
		if err := s.catchUp(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.waitForOlderLeases(ctx, s.active.Load()); err != nil {
		return nil, err
	}
	if duplicate != "" {
		return nil, fmt.Errorf("%w: %q", errDuplicateTool, duplicate)
	}
	return states, nil
}
