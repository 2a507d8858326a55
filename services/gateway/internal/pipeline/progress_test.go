package pipeline_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// progressServer is a fake server that never answers a call. It reports progress at the given times after the call.
type progressServer []time.Duration

func (p progressServer) Forward(ctx context.Context, _ upstream.Request, events func([]byte)) (upstream.Answer, error) {
	begin := time.Now()
	for _, at := range p {
		select {
		case <-time.After(time.Until(begin.Add(at))):
		case <-ctx.Done():
			return upstream.Answer{}, upstream.ErrTimeout
		}
		events([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"progress"}}`))
		events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`))
	}
	<-ctx.Done()
	return upstream.Answer{}, upstream.ErrTimeout
}

// impatientServer is a fake server with a timeout of its own, which expires after a second.
type impatientServer struct{}

func (impatientServer) Forward(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
	<-time.After(time.Second)
	return upstream.Answer{}, upstream.ErrTimeout
}

type messageServer struct{ progressServer }

func (s messageServer) Forward(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
	return s.progressServer.Forward(ctx, r, func([]byte) {
		events([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"notifications/progress"}}`))
		events([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	})
}

// Each progress notification restarts a call's timeout, up to a maximum. The refusal contains the timeout that was
// exceeded and its configuration key. A timeout that a rule sets is not extended.
func TestDo_ProgressExtendsACall(t *testing.T) {
	t.Parallel()
	every := func(d time.Duration, n int) (all progressServer) {
		for i := range n {
			all = append(all, time.Duration(i+1)*d)
		}
		return all
	}
	for name, tt := range map[string]struct {
		server interface {
			Forward(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error)
		}
		rule *durationpb.Duration
		most time.Duration
		want time.Duration
		text string
	}{
		"none":                       {every(0, 0), nil, 10 * time.Minute, time.Minute, "within 1m0s (servers.files.timeout) and has reported no progress since; whether"},
		"a while":                    {every(50*time.Second, 3), nil, 10 * time.Minute, 210 * time.Second, "within 1m0s (servers.files.timeout) and has reported no progress since; whether"},
		"without end":                {every(50*time.Second, 100), nil, 10 * time.Minute, 10 * time.Minute, "within 10m0s (servers.files.max_timeout); whether"},
		"too late":                   {every(61*time.Second, 3), nil, 10 * time.Minute, time.Minute, "(servers.files.timeout)"},
		"where it changes nothing":   {every(50*time.Second, 3), nil, time.Minute, time.Minute, "within 1m0s (servers.files.timeout); whether"},
		"where a rule says the time": {every(time.Second, 100), durationpb.New(5 * time.Second), 10 * time.Minute, 5 * time.Second, "within 5s (the timeout of rule files/slow); whether"},
		"a timeout of the server's":  {impatientServer{}, nil, 10 * time.Minute, time.Second, "the server reached a timeout of its own after 1s; whether"},
		"other messages":             {messageServer{every(50*time.Second, 3)}, nil, 10 * time.Minute, time.Minute, "(servers.files.timeout)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestPipeline()
				d := allow()
				d.Rule = &policyv1.RuleRef{Document: "files", Rule: "allows"}
				d.Timeout, d.TimeoutRule = tt.rule, &policyv1.RuleRef{Document: "files", Rule: "slow"}
				w.decide = decides(d)
				call := w.call(t)
				call.Upstream, call.MaxTimeout, call.Reply = tt.server, tt.most, new(heldReply)
				begin := time.Now()
				got := w.pipeline(t).Do(t.Context(), call).Refusal
				if took := time.Since(begin); took != tt.want || got == nil || !strings.Contains(got.Text(), tt.text) {
					t.Errorf("after %s: %+v, want %s and %q", took, got, tt.want, tt.text)
				}
			})
		})
	}
}
