package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/policy"
)

// readToolUses reads the journal's records of calls to a server's tools since the given time, or all records if the
// time is nil. It returns the use of each tool by name. It reports progress on standard error every two seconds.
func (t *tool) readToolUses(ctx context.Context, server string, since *timestamppb.Timestamp) (map[string]policy.Use, error) {
	client, done, err := t.gatewayClient()
	if err != nil {
		return nil, err
	}
	defer done()
	seen, lastReport := make(toolUses), time.Now()
	req := &gatewayv1.ListDecisionsRequest{
		Filter:   &gatewayv1.DecisionFilter{Server: server, Kinds: []gatewayv1.RecordKind{gatewayv1.RecordKind_RECORD_KIND_INTENT}, Since: since},
		PageSize: maxPage,
	}
	for n := 0; ; {
		requestCtx, cancel := requestContext(ctx)
		resp, err := client.ListDecisions(requestCtx, req)
		cancel()
		if err != nil {
			return nil, t.explainError(err)
		}
		for _, r := range resp.GetRecords() {
			seen.add(r)
			n++
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return seen.byTool(), nil
		}
		if time.Since(lastReport) > 2*time.Second {
			lastReport = time.Now()
			fmt.Fprintf(t.errOut, "sluice: read %d calls so far\n", n)
		}
	}
}

type toolUses map[string]*toolUse

type toolUse struct {
	policy.Use

	callers map[string]bool
	// recent contains the times of each session's calls within one minute of the call that was added last. A call counts
	// for the session of its caller, and for the session of each principal in the caller's delegation chain, just as it
	// counts for limits.
	recent map[string][]time.Time
}

// add adds a call. Calls must be added from newest to oldest. add ignores methods other than tools/call, because the
// field tool in their records contains another name, such as the name of a prompt.
func (u toolUses) add(r *gatewayv1.Record) {
	if r.GetMethod() != "tools/call" {
		return
	}
	one := u[r.GetTool()]
	if one == nil {
		one = &toolUse{callers: make(map[string]bool), recent: make(map[string][]time.Time)}
		one.Last = r.GetTime().AsTime()
		u[r.GetTool()] = one
	}
	who, at := r.GetPrincipal(), r.GetTime().AsTime()
	one.Calls++
	one.callers[who.GetTenant()+"/"+who.GetSubject()] = true
	for _, p := range append([]*identityv1.Principal{who}, who.GetChain()...) {
		session := p.GetTenant() + "/" + p.GetSubject() + "/" + cmp.Or(p.GetRun(), p.GetSession())
		one.recent[session] = append(one.recent[session], at)
		for one.recent[session][0].Sub(at) >= time.Minute {
			one.recent[session] = one.recent[session][1:]
		}
		one.Busiest = max(one.Busiest, len(one.recent[session]))
	}
}

func (u toolUses) byTool() map[string]policy.Use {
	out := make(map[string]policy.Use, len(u))
	for name, one := range u {
		one.Callers = len(one.callers)
		out[name] = one.Use
	}
	return out
}
