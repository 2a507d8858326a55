package pipeline_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
)

// The span of a call contains the id of the call's approval, and how long the call was held.
func TestDo_SpanNamesTheApproval(t *testing.T) {
	t.Parallel()
	call := func(ctx context.Context, t *testing.T, w *testPipeline, p *pipeline.Pipeline) {
		p.Do(ctx, w.newApprovalCall(t))
	}
	wait := func(ctx context.Context, _ *testing.T, _ *testPipeline, p *pipeline.Pipeline) {
		p.WaitFor(ctx, approvals.WaitRequest{Principal: caller("ana"), Approval: "a-1"})
	}
	for name, tt := range map[string]struct {
		state *approvalv1.Approval
		then  *approvalv1.Approval
		do    func(context.Context, *testing.T, *testPipeline, *pipeline.Pipeline)
		want  map[string]string
	}{
		"approved already":   {approvalIn(approved), nil, call, map[string]string{"sluice.approval.id": "a-1"}},
		"approved meanwhile": {approvalIn(pending), approvalIn(approved), call, map[string]string{"sluice.approval.id": "a-1", "sluice.approval.wait": "25"}},
		"a ticket":           {approvalIn(pending), nil, call, map[string]string{"sluice.approval.id": "a-1", "sluice.approval.wait": "45"}},
		"waited for":         {approvalIn(pending), approvalIn(denied), wait, map[string]string{"sluice.approval.id": "a-1", "sluice.approval.wait": "25"}},
		"no approval": {nil, nil, func(ctx context.Context, t *testing.T, w *testPipeline, p *pipeline.Pipeline) {
			w.decide = decides(allow())
			p.Do(ctx, w.call(t))
		}, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newApprovalPipeline()
				w.approvals.updates = make(chan *approvalv1.Approval, 1)
				w.approvals.answerRequest = answerStates(tt.state)
				if tt.then != nil {
					time.AfterFunc(25*time.Second, func() { w.approvals.updates <- tt.then })
				}
				recorder := tracetest.NewSpanRecorder()
				ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("").Start(t.Context(), "x")
				p := w.pipeline(t)
				tt.do(ctx, t, w, p)
				span.End()
				p.Wait(t.Context())
				got := make(map[string]string)
				for _, a := range recorder.Ended()[0].Attributes() {
					if a.Key == "sluice.approval.id" || a.Key == "sluice.approval.wait" {
						got[string(a.Key)] = a.Value.String()
					}
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("the span says (-want +got):\n%s", diff)
				}
			})
		})
	}
}
