package telemetry_test

import (
	"context"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// metrics is a collector that stores the exported values of counters.
type metrics struct {
	metricsv1.UnimplementedMetricsServiceServer

	mu sync.Mutex
	// The field of contains the attributes of the process that exported last. The field counts contains the values of
	// that process's counters.
	of     map[string]string
	counts map[string]int64
}

// Export implements [metricsv1.MetricsServiceServer].
func (m *metrics) Export(_ context.Context, req *metricsv1.ExportMetricsServiceRequest) (*metricsv1.ExportMetricsServiceResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of, m.counts = make(map[string]string), make(map[string]int64)
	for _, resource := range req.GetResourceMetrics() {
		for _, a := range resource.GetResource().GetAttributes() {
			m.of[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, scope := range resource.GetScopeMetrics() {
			for _, made := range scope.GetMetrics() {
				for _, point := range made.GetSum().GetDataPoints() {
					m.counts[made.GetName()] += point.GetAsInt()
				}
			}
		}
	}
	return new(metricsv1.ExportMetricsServiceResponse), nil
}

func (m *metrics) last() (of map[string]string, counts map[string]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of, m.counts
}

func counter(t *testing.T, tel *telemetry.Telemetry) metric.Int64Counter {
	t.Helper()
	c, err := tel.Meters.Meter("test").Int64Counter("work")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Close exports the last values of the counters. The counters include all events, even if no trace is sampled.
func TestClose_ExportsLastMetrics(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tel := start(t, telemetry.Config{Service: "sluice-test", Version: "v1", Endpoint: c.url})
	counter(t, tel).Add(t.Context(), 3)
	if err := tel.Close(); err != nil {
		t.Fatal(err)
	}
	of, counts := c.metrics.last()
	if counts["go.goroutine.count"] == 0 {
		t.Error("goroutines are not counted")
	}
	delete(counts, "go.goroutine.count")
	if of["service.name"] != "sluice-test" || of["service.version"] != "v1" || !maps.Equal(counts, map[string]int64{"work": 3}) {
		t.Errorf("%v counted %v", of, counts)
	}
}

// An OpenTelemetry environment variable sets the interval at which metrics are exported.
func TestMetrics_UseStandardInterval(t *testing.T) {
	c := newCollector(t)
	t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
	counter(t, start(t, telemetry.Config{Endpoint: c.url})).Add(t.Context(), 1)
	for end := time.Now().Add(20 * time.Second); ; <-time.After(10 * time.Millisecond) {
		if _, counts := c.metrics.last(); counts["work"] == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("nothing was exported")
		}
	}
}

// Two replicas have different instance ids, unless an operator sets the id.
func TestMetrics_DistinguishReplicas(t *testing.T) {
	c := newCollector(t)
	instance := func() string {
		tel := start(t, telemetry.Config{Service: "s", Endpoint: c.url})
		counter(t, tel).Add(t.Context(), 1)
		if err := tel.Close(); err != nil {
			t.Fatal(err)
		}
		of, _ := c.metrics.last()
		return of["service.instance.id"]
	}
	if first, second := instance(), instance(); first == "" || first == second {
		t.Errorf("the instances are %q and %q", first, second)
	}
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-7,service.name=other")
	if got := instance(); got != "pod-7" {
		t.Errorf("the instance with a name is %q", got)
	}
	if of, _ := c.metrics.last(); of["service.name"] != "s" {
		t.Errorf("the environment changed the name of the service: %v", of)
	}
}

// A collector accepts only spans, as Jaeger does. This does not cause an error.
func TestMetrics_CollectorWithoutMetricsIsNoError(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	spans, server := new(collector), grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, spans)
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(lis) })
	t.Cleanup(func() {
		server.Stop()
		served.Wait()
	})
	tel := start(t, telemetry.Config{Endpoint: "http://" + lis.Addr().String(), Sample: 1})
	counter(t, tel).Add(t.Context(), 1)
	_, span := tel.Provider.Tracer("test").Start(t.Context(), "work")
	span.End()
	if err := tel.Close(); err != nil {
		t.Errorf("closed with %v", err)
	}
	if got := spans.names(); len(got) != 1 {
		t.Errorf("arrived: %q", got)
	}
}

func TestMetrics_CanBeDisabled(t *testing.T) {
	c := newCollector(t)
	t.Setenv("OTEL_METRICS_EXPORTER", "none")
	tel := start(t, telemetry.Config{Endpoint: c.url})
	counter(t, tel).Add(t.Context(), 1)
	if err := tel.Close(); err != nil {
		t.Fatal(err)
	}
	if _, counts := c.metrics.last(); counts != nil {
		t.Errorf("arrived: %v", counts)
	}
}

// Counters work even if nothing is exported.
func TestMetrics_CountWithoutCollector(t *testing.T) {
	t.Parallel()
	tel := start(t, telemetry.Config{})
	c := counter(t, tel)
	c.Add(t.Context(), 1)
	if c.Enabled(t.Context()) {
		t.Error("the counter is enabled without a collector")
	}
}
