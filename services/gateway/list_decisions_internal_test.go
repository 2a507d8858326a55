package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func TestListDecisions_SelectsByTime(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	var times []*timestamppb.Timestamp
	for i := range 5 {
		id := s.record(t, "default", fmt.Sprintf("ana%d", i))
		resp, err := s.GetDecision(as(t, "default"), &gatewayv1.GetDecisionRequest{Id: id})
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, resp.GetRecords()[0].GetTime())
	}
	for name, tt := range map[string]struct {
		filter *gatewayv1.DecisionFilter
		want   []string
	}{
		"all":          {&gatewayv1.DecisionFilter{}, []string{"ana4", "ana3", "ana2", "ana1", "ana0"}},
		"since":        {&gatewayv1.DecisionFilter{Since: times[3]}, []string{"ana4", "ana3"}},
		"until":        {&gatewayv1.DecisionFilter{Until: times[2]}, []string{"ana1", "ana0"}},
		"between":      {&gatewayv1.DecisionFilter{Since: times[1], Until: times[3]}, []string{"ana2", "ana1"}},
		"none of them": {&gatewayv1.DecisionFilter{Since: times[1], Until: times[1]}, nil},
		"and a server": {&gatewayv1.DecisionFilter{Since: times[1], Server: "another"}, nil},
	} {
		resp, err := s.ListDecisions(as(t, "default"), &gatewayv1.ListDecisionsRequest{Filter: tt.filter})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range resp.GetRecords() {
			got = append(got, r.GetPrincipal().GetSubject())
		}
		if !slices.Equal(got, tt.want) || resp.GetNextPageToken() != "" {
			t.Errorf("%s: %v, %q, want %v", name, got, resp.GetNextPageToken(), tt.want)
		}
	}
}

// The search for a page can end between records that do not match the filter. No record is skipped.
func TestListDecisions_SearchCanEndBetweenRecords(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	wanted := s.record(t, "default", "needle")
	for i := range 2*searchStep + 7 {
		err := s.journal.Refusal(t.Context(), &journal.Record{
			DecisionID: fmt.Sprintf("hay-%d", i), Principal: journal.Principal{Tenant: "default", Subject: "hay"}, Server: "files", Tool: "safe", Code: "denied_by_rule",
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	filter := &gatewayv1.DecisionFilter{Subject: "needle"}
	looked := 0
	take := searchFilter(func(*journal.Record) bool { return false }, filter)
	for _, err := range s.journal.Backward(t.Context(), journal.Position{}, take) {
		if err != nil {
			t.Fatal(err)
		}
		looked++
	}
	if looked != 2 {
		t.Errorf("the search can end at %d places, want 2", looked)
	}
	req := &gatewayv1.ListDecisionsRequest{Filter: filter}
	var found []string
	for begin := time.Now(); ; {
		resp, err := s.ListDecisions(as(t, "default"), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resp.GetRecords() {
			found = append(found, r.GetDecisionId())
		}
		if resp.GetSearched() == nil && resp.GetNextPageToken() != "" {
			t.Error("a page that is not the last has no search position")
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("there is no last page")
		}
	}
	if !slices.Equal(found, []string{wanted}) {
		t.Errorf("found %v", found)
	}
}

// A caller is already reading. Another read by the same caller waits and then succeeds. The test checks this for each
// method that reads records.
func TestRead_WaitsForOtherReadsOfTheCaller(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	id := s.record(t, "default", "ana")
	reads := map[string]func(context.Context) error{
		"ListDecisions": func(ctx context.Context) error {
			_, err := s.ListDecisions(ctx, new(gatewayv1.ListDecisionsRequest))
			return err
		},
		"SummarizeObservations": func(ctx context.Context) error {
			_, err := s.SummarizeObservations(ctx, new(gatewayv1.SummarizeObservationsRequest))
			return err
		},
		"GetDecision": func(ctx context.Context) error {
			_, err := s.GetDecision(ctx, &gatewayv1.GetDecisionRequest{Id: id})
			return err
		},
		"WatchDecisions": func(ctx context.Context) error {
			for rec, err := range s.journal.Follow(ctx, 1, nil, func() (func(), error) { return s.read(ctx) }) {
				if err != nil || rec.DecisionID == id {
					return err
				}
			}
			return ctx.Err()
		},
	}
	for name, read := range reads {
		done, err := s.read(as(t, "default"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(as(t, "default"))
		ended := make(chan error, 1)
		go func() { ended <- read(ctx) }()
		cancel()
		// A cancelled watch returns no error.
		if err := <-ended; name != "WatchDecisions" && !errors.Is(err, context.Canceled) {
			t.Errorf("%s during another read of the same caller ended with %v, not when it was cancelled", name, err)
		}
		go func() { ended <- read(as(t, "default")) }()
		done()
		if err := <-ended; err != nil {
			t.Errorf("%s after the other read: %v", name, err)
		}
	}
}
