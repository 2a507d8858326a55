package stack

import (
	"context"
	"encoding/hex"
	"net"
	"strconv"
	"sync"
	"testing"

	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// FastMetricExport is an environment variable with its value. It makes a process export its metrics ten times a second.
const FastMetricExport = "OTEL_METRIC_EXPORT_INTERVAL=100"

// Collector is an OTLP/gRPC receiver that stores every span and each metric's latest value. It is safe for concurrent
// use.
type Collector struct {
	collectorv1.UnimplementedTraceServiceServer
	// URL is the value for the configuration key `telemetry.otlp`.
	URL string

	mu      sync.Mutex
	spans   []Span
	metrics map[metricKey]Metric
	raw     []byte
}

// Span is one exported span.
type Span struct {
	// Service is the `service.name` of the process that made the span.
	Service string
	Name    string
	Kind    tracev1.Span_SpanKind
	// Trace, ID and Parent are identifiers in lower-case hexadecimal. Parent is empty for the root span of a trace.
	Trace, ID, Parent string
	// Links contains the trace ids of the linked spans.
	Links []string
	// Attributes contains the span's attributes as strings.
	Attributes map[string]string
	// Failed is true if the span's status is an error.
	Failed bool
}

// NewCollector starts a receiver, which is stopped when the test ends.
func NewCollector(t *testing.T) *Collector {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &Collector{URL: "http://" + lis.Addr().String(), metrics: make(map[metricKey]Metric)}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	metricsv1.RegisterMetricsServiceServer(server, &metricsReceiver{collector: c})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(lis) // Serve returns when the test ends
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return c
}

// Export implements collectorv1.TraceServiceServer.
func (c *Collector) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	raw, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = append(c.raw, raw...)
	for _, resource := range req.GetResourceSpans() {
		service := attributes(resource.GetResource().GetAttributes())["service.name"]
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.spans = append(c.spans, newSpan(service, span))
			}
		}
	}
	return new(collectorv1.ExportTraceServiceResponse), nil
}

func newSpan(service string, span *tracev1.Span) Span {
	out := Span{
		Service: service, Name: span.GetName(), Kind: span.GetKind(),
		Trace: hex.EncodeToString(span.GetTraceId()), ID: hex.EncodeToString(span.GetSpanId()), Parent: hex.EncodeToString(span.GetParentSpanId()),
		Attributes: attributes(span.GetAttributes()), Failed: span.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR,
	}
	for _, link := range span.GetLinks() {
		out.Links = append(out.Links, hex.EncodeToString(link.GetTraceId()))
	}
	return out
}

func attributes(list []*commonv1.KeyValue) map[string]string {
	out := make(map[string]string, len(list))
	for _, a := range list {
		switch v := a.GetValue().GetValue().(type) {
		case *commonv1.AnyValue_StringValue:
			out[a.GetKey()] = v.StringValue
		case *commonv1.AnyValue_IntValue:
			out[a.GetKey()] = strconv.FormatInt(v.IntValue, 10)
		case *commonv1.AnyValue_BoolValue:
			out[a.GetKey()] = strconv.FormatBool(v.BoolValue)
		default:
			out[a.GetKey()] = a.GetValue().String()
		}
	}
	return out
}

// Spans returns the spans of a trace, or all spans if trace is empty.
func (c *Collector) Spans(trace string) []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Span
	for _, span := range c.spans {
		if trace == "" || span.Trace == trace {
			out = append(out, span)
		}
	}
	return out
}

// Raw returns the concatenated bytes of all exported requests.
func (c *Collector) Raw() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]byte(nil), c.raw...)
}
