package gateway

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// maxObservedRows is the maximum number of rows on a page of a summary.
const maxObservedRows = 1000

// SummarizeObservations implements gatewayv1.GatewayServiceServer.
func (s *Service) SummarizeObservations(ctx context.Context, req *gatewayv1.SummarizeObservationsRequest) (*gatewayv1.SummarizeObservationsResponse, error) {
	at, err := parsePageToken(req.GetPageToken())
	if err != nil {
		return nil, toStatus(err)
	}
	selected := filter(ctx, req.GetFilter())
	wanted := func(r *journal.Record) bool { return isCall(r) && selected(r) }
	done, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	page := observationPage{rows: make(map[observationKey]*gatewayv1.ObservedCalls)}
	begun, searched := time.Now(), time.Time{}
	for listed, err := range s.journal.Backward(ctx, at, searchFilter(wanted, req.GetFilter())) {
		if err != nil {
			return nil, fmt.Errorf("read the journal: %w", err)
		}
		if isBefore(listed.Record, req.GetFilter()) {
			break // all remaining records are older
		}
		if wanted(listed.Record) && !page.add(listed.Record) {
			page.resp.NextPageToken = formatPageToken(at)
			break
		}
		at, searched = listed.Position, listed.Record.Time
		if time.Since(begun) > searchTime {
			page.resp.NextPageToken = formatPageToken(at)
			break
		}
	}
	if !searched.IsZero() {
		page.resp.Searched = timestamppb.New(searched)
	}
	return &page.resp, nil
}

// isCall reports whether a record describes a call. This is the case if it records the intent or the refusal of a call.
// Refused protocol messages are not calls. Records that count refusals have no method, and are not calls either.
func isCall(r *journal.Record) bool {
	switch r.Kind { //nolint:exhaustive // other records belong to no call, or to a call with its own intent record
	case journal.KindIntent:
		return true
	case journal.KindRefusal:
		return r.Observed != (journal.Observed{}) || r.Method != "" && !mcpmethod.IsProtocol(r.Method)
	default:
		return false
	}
}

// observationKey contains the fields that are the same for all calls in one row.
type observationKey struct {
	server, method, tool, subject, agent string
	allowed                              bool
	observed                             journal.Observed
}

// observationPage is a page of a summary that is built while the journal is read.
type observationPage struct {
	resp gatewayv1.SummarizeObservationsResponse
	rows map[observationKey]*gatewayv1.ObservedCalls
	// size is the size of the rows in bytes.
	size int
}

// add adds the call of a record to the page. Calls must be added from newest to oldest. If the page has no room for
// another row, add returns false and adds nothing.
func (p *observationPage) add(r *journal.Record) bool {
	if r.Observed == (journal.Observed{}) {
		p.resp.Calls++
		return true
	}
	key := observationKey{r.Server, r.Method, r.Tool, r.Subject, r.Agent, r.Kind == journal.KindIntent, r.Observed}
	row := p.rows[key]
	if row == nil {
		row = &gatewayv1.ObservedCalls{
			Server: r.Server, Method: r.Method, Tool: r.Tool, Subject: r.Subject, Agent: r.Agent, Allowed: key.allowed,
			Observed: journal.ToProto(r).GetObserved(), Last: timestamppb.New(r.Time),
		}
		size := proto.Size(row)
		if len(p.rows) == maxObservedRows || len(p.rows) > 0 && p.size+size > maxList {
			return false
		}
		p.size += size
		p.rows[key], p.resp.Rows = row, append(p.resp.Rows, row)
	}
	row.Count++
	row.First = timestamppb.New(r.Time)
	p.resp.Calls++
	return true
}
