package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// searchTime limits how long one request searches for records. If this time elapses before the page is full, the
	// client can continue the search with the page token.
	searchTime = 500 * time.Millisecond
	// searchStep is the number of records after which the search checks the time.
	searchStep = 10_000
)

// ListDecisions implements gatewayv1.GatewayServiceServer.
func (s *Service) ListDecisions(ctx context.Context, req *gatewayv1.ListDecisionsRequest) (*gatewayv1.ListDecisionsResponse, error) {
	at, err := parsePageToken(req.GetPageToken())
	if err != nil {
		return nil, toStatus(err)
	}
	if req.GetWithArguments() && !mayReadArguments(authn.CallerOf(ctx)) {
		return nil, toStatus(errOperatorRequired)
	}
	wanted := filter(ctx, req.GetFilter())
	done, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	resp, size, most := new(gatewayv1.ListDecisionsResponse), 0, cmp.Or(int(req.GetPageSize()), defaultPage)
	begun := time.Now()
	for listed, err := range s.journal.Backward(ctx, at, searchFilter(wanted, req.GetFilter())) {
		if err != nil {
			return nil, fmt.Errorf("read the journal: %w", err)
		}
		if isBefore(listed.Record, req.GetFilter()) {
			break // all remaining records are older
		}
		if wanted(listed.Record) {
			rec := journal.ToProto(listed.Record)
			if req.GetWithArguments() {
				s.addArguments(rec)
			}
			if size += proto.Size(rec); len(resp.GetRecords()) == most || size > maxList {
				resp.NextPageToken = formatPageToken(at)
				break
			}
			resp.Records = append(resp.Records, rec)
		}
		at, resp.Searched = listed.Position, timestamppb.New(listed.Record.Time)
		if time.Since(begun) > searchTime {
			resp.NextPageToken = formatPageToken(at)
			break
		}
	}
	if req.GetWithArguments() {
		s.logArgumentsRead(ctx, resp.GetRecords()...)
	}
	return resp, nil
}

// read waits until the caller may read records. The caller must call the returned function after reading. The number of
// concurrent reads of one caller is limited. After a read of more than a millisecond, the same caller must wait for as
// long as the read took, up to 1 s. Otherwise, a caller that reads continuously would delay other callers.
func (s *Service) read(ctx context.Context) (done func(), err error) {
	caller := cmp.Or(authn.CallerOf(ctx), new(authn.Caller))
	principal := cmp.Or(caller.Person, caller.Principal)
	done, err = s.reads.Acquire(ctx, fmt.Sprintf("%v %q %q", caller.Role, principal.GetTenant(), principal.GetSubject()))
	if errors.Is(err, fairqueue.ErrBusy) {
		return nil, &rpc.Error{Code: codes.ResourceExhausted, Reason: "READS_EXHAUSTED", Err: err}
	}
	return done, err
}

// searchFilter returns a filter that selects all wanted records and all records that are too old for f. It also selects
// every searchStep-th of the remaining records, because the search can stop only at selected records.
func searchFilter(wanted journal.Filter, f *gatewayv1.DecisionFilter) journal.Filter {
	looked := 0
	return func(r *journal.Record) bool {
		looked++
		return wanted(r) || isBefore(r, f) || looked%searchStep == 0
	}
}

// isBefore reports whether a record is older than all records that f can select.
func isBefore(r *journal.Record, f *gatewayv1.DecisionFilter) bool {
	return f.GetSince() != nil && r.Time.Before(f.GetSince().AsTime())
}

func formatPageToken(at journal.Position) string { return fmt.Sprintf("%d-%d", at.Calls, at.Refusals) }
