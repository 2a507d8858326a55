package meters_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
)

func start(t testing.TB, meter metric.Meter) *meters.Meters {
	t.Helper()
	m, err := meters.New(meter)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// recordedAttributes returns the attribute sets of the recorded metrics, and how often each set was recorded.
func recordedAttributes(t *testing.T, reader sdkmetric.Reader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]int64)
	for _, m := range all.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				out[m.Name+" "+p.Attributes.Encoded(attribute.DefaultEncoder())] += p.Value
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				out[m.Name+" "+p.Attributes.Encoded(attribute.DefaultEncoder())] += int64(p.Count)
			}
		}
	}
	return out
}

// All values that are not in an attribute's list are recorded under one common value.
func TestMeters_UnlistedValuesAreRecordedAsOne(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	m := start(t, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"))
	ctx := t.Context()
	for _, o := range []meters.Operation{
		{Method: "tools/call", Transport: "pipe"},
		{Method: "tools/call", ErrorType: meters.Timeout, Transport: "pipe"},
		{Method: "s3cret", Transport: "pipe"},
		{Method: "s3cret", ErrorType: "tool_error", Transport: "pipe"},
		{Method: "tools/call", ErrorType: "-31999", Transport: "pipe"},
		{Method: "", ErrorType: "s3cret", Transport: "s3cret"},
	} {
		m.RecordSent(ctx, o, time.Second)
	}
	m.RecordServed(ctx, meters.Operation{Method: "ping", Transport: "tcp"}, time.Second, time.Second)
	m.RecordHeld(ctx, approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN, time.Second)
	m.RecordHeld(ctx, 4711, time.Second)
	m.CountAllowed(ctx)
	m.CountRefused(ctx, commonv1.Code_CODE_DENIED_BY_RULE)
	m.CountRefused(ctx, commonv1.Code_CODE_UNSPECIFIED)
	m.CountRefused(ctx, 4711)
	m.CountObserved(ctx, "would_deny")
	m.CountRedacted(ctx, "email", 3)
	m.CountCacheMismatch(ctx)
	m.CountVerified("corp", "valid")
	m.CountVerified("", "unknown_issuer")
	m.RecordClientSession(ctx, "2025-11-25", time.Second)
	m.RecordServerSession(ctx, "s3cret", "pipe", time.Second)
	m.RecordServerSession(ctx, "2025-06-18", "s3cret", time.Second)
	want := map[string]int64{
		"mcp.client.operation.duration mcp.method.name=tools/call,network.transport=pipe":                             1,
		"mcp.client.operation.duration error.type=upstream_timeout,mcp.method.name=tools/call,network.transport=pipe": 1,
		"mcp.client.operation.duration mcp.method.name=_OTHER,network.transport=pipe":                                 1,
		"mcp.client.operation.duration error.type=tool_error,mcp.method.name=_OTHER,network.transport=pipe":           1,
		"mcp.client.operation.duration error.type=_OTHER,mcp.method.name=tools/call,network.transport=pipe":           1,
		"mcp.client.operation.duration error.type=_OTHER,mcp.method.name=_OTHER,network.transport=tcp":                1,
		"mcp.server.operation.duration mcp.method.name=ping,network.transport=tcp":                                    1,
		"sluice.operation.duration mcp.method.name=ping,network.transport=tcp":                                        1,
		"sluice.hold.duration sluice.approval.state=outcome_unknown":                                                  1,
		"sluice.hold.duration sluice.approval.state=_OTHER":                                                           1,
		"mcp.server.session.duration mcp.protocol.version=2025-11-25,network.transport=tcp":                           1,
		"mcp.client.session.duration mcp.protocol.version=_OTHER,network.transport=pipe":                              1,
		"mcp.client.session.duration mcp.protocol.version=_OTHER,network.transport=tcp":                               1,
		"sluice.decisions.differing ":                                                      1,
		"sluice.redactions sluice.redaction.name=email":                                    3,
		"sluice.jwt.verifications sluice.issuer=corp,sluice.jwt.outcome=valid":             1,
		"sluice.jwt.verifications sluice.issuer=_OTHER,sluice.jwt.outcome=unknown_issuer":  1,
		"sluice.upstream.rests ":                                                           0,
		"sluice.decisions sluice.decision.effect=allow":                                    1,
		"sluice.decisions.observed sluice.observed.effect=would_deny":                      1,
		"sluice.decisions sluice.decision.code=denied_by_rule,sluice.decision.effect=deny": 1,
		"sluice.decisions sluice.decision.code=_OTHER,sluice.decision.effect=deny":         2,
	}
	if diff := cmp.Diff(want, recordedAttributes(t, reader)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestNew_RequiresAMeter(t *testing.T) {
	t.Parallel()
	if m, err := meters.New(nil); err == nil || m != nil {
		t.Error("New accepts a nil meter")
	}
}

// BenchmarkCall measures the metrics for an allowed call: one decision, one message from the client and one message to
// the server.
func BenchmarkCall(b *testing.B) {
	exported := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())).Meter("test")
	for name, meter := range map[string]metric.Meter{"nothing exported": noop.Meter{}, "exported": exported} {
		b.Run(name, func(b *testing.B) {
			m, ctx := start(b, meter), b.Context()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					m.CountAllowed(ctx)
					m.RecordServed(ctx, meters.Operation{Method: "tools/call", Transport: "tcp"}, time.Millisecond, 0)
					m.RecordSent(ctx, meters.Operation{Method: "tools/call", Transport: "pipe"}, time.Millisecond)
				}
			})
		})
	}
}

// The time that a call spends waiting for approvers does not count as the gateway's processing time.
func TestRecordServed_ExcludesTimeOfWaitingForApprovers(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	m := start(t, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"))
	m.RecordServed(t.Context(), meters.Operation{Method: "tools/call", Transport: "tcp"}, 31*time.Second, 30*time.Second)
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, made := range all.ScopeMetrics[0].Metrics {
		if histogram, ok := made.Data.(metricdata.Histogram[float64]); ok && len(histogram.DataPoints) > 0 {
			got[made.Name] = histogram.DataPoints[0].Sum
		}
	}
	if diff := cmp.Diff(map[string]float64{"mcp.server.operation.duration": 31, "sluice.operation.duration": 1}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
