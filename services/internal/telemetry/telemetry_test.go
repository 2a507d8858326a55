package telemetry_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	url     string
	metrics metrics

	mu       sync.Mutex
	requests []*collectorv1.ExportTraceServiceRequest
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{url: "http://" + lis.Addr().String()}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	metricsv1.RegisterMetricsServiceServer(server, &c.metrics)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(lis) // returns when the test ends
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return c
}

// Export implements [collectorv1.TraceServiceServer].
func (c *collector) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, req)
	return new(collectorv1.ExportTraceServiceResponse), nil
}

// names returns the exported spans as SERVICE/VERSION/NAME.
func (c *collector) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, req := range c.requests {
		for _, resource := range req.GetResourceSpans() {
			of := make(map[string]string)
			for _, a := range resource.GetResource().GetAttributes() {
				of[a.GetKey()] = a.GetValue().GetStringValue()
			}
			for _, scope := range resource.GetScopeSpans() {
				for _, span := range scope.GetSpans() {
					out = append(out, of["service.name"]+"/"+of["service.version"]+"/"+span.GetName())
				}
			}
		}
	}
	return out
}

func start(t *testing.T, cfg telemetry.Config) *telemetry.Telemetry {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	tel, err := telemetry.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tel.Close() })
	return tel
}

func TestClose_ExportsLastSpans(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tel := start(t, telemetry.Config{Service: "sluice-test", Version: "v1", Endpoint: c.url, Sample: 1})
	_, span := tel.Provider.Tracer("test").Start(t.Context(), "work")
	span.End()
	if err := tel.Close(); err != nil {
		t.Fatal(err)
	}
	if got := c.names(); len(got) != 1 || got[0] != "sluice-test/v1/work" {
		t.Errorf("arrived: %q", got)
	}
}

// Every span has a trace id, even if the span is not sampled, so that journals and servers can refer to the same trace.
func TestSpans_HaveContextWhenUnsampled(t *testing.T) {
	t.Parallel()
	for _, cfg := range []telemetry.Config{{}, {Endpoint: newCollector(t).url}, {Sample: 1}} {
		tel := start(t, cfg)
		_, span := tel.Provider.Tracer("test").Start(t.Context(), "work")
		if !span.SpanContext().IsValid() || span.SpanContext().IsSampled() != (cfg.Sample == 1) {
			t.Errorf("%+v: %+v", cfg, span.SpanContext())
		}
		carrier := propagation.MapCarrier{}
		tel.Propagator.Inject(trace.ContextWithSpan(t.Context(), span), carrier)
		if !strings.Contains(carrier["traceparent"], span.SpanContext().TraceID().String()) {
			t.Errorf("%+v: carried %q", cfg, carrier)
		}
		span.End()
	}
}

func TestSpans_UnsampledAreNotExported(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tel := start(t, telemetry.Config{Endpoint: c.url})
	_, span := tel.Provider.Tracer("test").Start(t.Context(), "work")
	span.End()
	if err := tel.Close(); err != nil {
		t.Fatal(err)
	}
	if got := c.names(); len(got) > 0 {
		t.Errorf("arrived: %q", got)
	}
}

// A child span is sampled if and only if its parent is sampled, so that a trace is either sampled completely or not at
// all.
func TestSpans_ParentDecidesSampling(t *testing.T) {
	t.Parallel()
	for _, flags := range []trace.TraceFlags{0, trace.FlagsSampled} {
		parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: flags, Remote: true})
		for _, sample := range []float64{0, 1} {
			_, span := start(t, telemetry.Config{Sample: sample}).Provider.Tracer("test").Start(trace.ContextWithRemoteSpanContext(t.Context(), parent), "work")
			if got := span.SpanContext(); got.IsSampled() != parent.IsSampled() || got.TraceID() != parent.TraceID() {
				t.Errorf("sampled %t below a parent of %t", got.IsSampled(), parent.IsSampled())
			}
			span.End()
		}
	}
}

// A client's baggage is untrusted and is not forwarded.
func TestPropagator_DropsBaggage(t *testing.T) {
	t.Parallel()
	tel := start(t, telemetry.Config{})
	in := propagation.MapCarrier{"baggage": "subject=root", "traceparent": "00-01000000000000000000000000000000-0200000000000000-01"}
	out := propagation.MapCarrier{}
	tel.Propagator.Inject(tel.Propagator.Extract(t.Context(), in), out)
	if out["traceparent"] != in["traceparent"] || len(out) != 1 {
		t.Errorf("carried on: %q", out)
	}
}

func TestStart_RefusesSampleOutOfRange(t *testing.T) {
	t.Parallel()
	for _, sample := range []float64{-0.1, 1.1, math.NaN(), math.Inf(1)} {
		if tel, err := telemetry.Start(t.Context(), telemetry.Config{Sample: sample, Log: slog.New(slog.DiscardHandler)}); err == nil {
			_ = tel.Close()
			t.Errorf("a sample of %v was accepted", sample)
		}
	}
}

func TestStart_RequiresLog(t *testing.T) {
	t.Parallel()
	if tel, err := telemetry.Start(t.Context(), telemetry.Config{}); err == nil {
		_ = tel.Close()
		t.Error("Start succeeded without a log")
	}
}

func TestStart_LogsExportErrors(t *testing.T) { // not parallel, because a process has only one error handler
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer() // supports neither traces nor metrics
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(lis) })
	t.Cleanup(func() {
		server.Stop()
		served.Wait()
	})
	lines := make(chan string, 100)
	tel := start(t, telemetry.Config{Endpoint: "http://" + lis.Addr().String(), Sample: 1, Log: slog.New(slog.NewJSONHandler(writer(lines), nil))})
	_, span := tel.Provider.Tracer("test").Start(t.Context(), "work")
	span.End()
	if err := tel.Close(); err != nil {
		t.Errorf("closed with %v", err)
	}
	var record struct{ Level, Msg, Error string }
	line := <-lines
	if err := json.Unmarshal([]byte(line), &record); err != nil || record.Level != "WARN" || record.Error == "" {
		t.Errorf("%v: %s", err, line)
	}
}

type writer chan string

func (w writer) Write(line []byte) (int, error) {
	w <- string(line)
	return len(line), nil
}

// The collector is unavailable. Close returns after at most its timeout, and without an error.
func TestClose_DoesNotWaitForUnavailableCollector(t *testing.T) {
	t.Parallel()
	tel := start(t, telemetry.Config{Endpoint: "http://127.0.0.1:1", Sample: 1})
	_, span := tel.Provider.Tracer("test").Start(t.Context(), "work")
	span.End()
	counter(t, tel).Add(t.Context(), 1)
	begin := time.Now()
	if err := tel.Close(); err != nil {
		t.Errorf("closed with %v", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("Close took %v", took)
	}
}

func TestStart_UsesStandardEndpointVariable(t *testing.T) {
	c := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.url)
	tel := start(t, telemetry.Config{Service: "s", Version: "v", Sample: 1})
	_, span := tel.Provider.Tracer("test").Start(t.Context(), "work")
	span.End()
	if err := tel.Close(); err != nil {
		t.Fatal(err)
	}
	if got := c.names(); len(got) != 1 {
		t.Errorf("arrived: %q", got)
	}
}
