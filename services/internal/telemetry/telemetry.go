// Package telemetry starts OpenTelemetry for a process: traces over OTLP, sampled
// at the root, and a provider that makes trace ids even where nothing is
// exported, so that journals, logs and upstreams always name the same trace.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
)

// endpointVariable is OpenTelemetry's own name for where to export to. The
// configuration wins over it.
const endpointVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"

// flushTimeout bounds how long a stop waits for the last spans to be exported.
const flushTimeout = 3 * time.Second

// Config says what to trace and where to send it. The zero value exports nothing
// and samples nothing.
type Config struct {
	// Service is the process's `service.name`.
	Service string
	// Version is its `service.version`.
	Version string
	// Endpoint is where spans go, as an OTLP/gRPC URL such as
	// "http://localhost:4317"; empty exports nothing.
	Endpoint string
	// Sample is the share of traces that are sampled where this process is the
	// root: 0 to 1.
	Sample float64
}

// Telemetry is what a process traces with. It is safe for concurrent use.
type Telemetry struct {
	// Provider makes tracers.
	Provider trace.TracerProvider
	// Propagator carries W3C Trace Context, and nothing else: baggage of
	// strangers is dropped.
	Propagator propagation.TextMapPropagator

	provider *sdktrace.TracerProvider
}

// Start starts telemetry. [Telemetry.Close] flushes it.
func Start(ctx context.Context, cfg Config) (*Telemetry, error) {
	if !(cfg.Sample >= 0 && cfg.Sample <= 1) { // NaN is neither
		return nil, fmt.Errorf("telemetry: sample %v is not between 0 and 1", cfg.Sample)
	}
	if cfg.Endpoint == "" {
		cfg.Endpoint = os.Getenv(endpointVariable)
	}
	opts := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", cfg.Service),
			attribute.String("service.version", cfg.Version),
		)),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.Sample))),
	}
	if cfg.Endpoint != "" {
		exporter, err := otlptracegrpc.New(ctx,
			otlptracegrpc.WithEndpointURL(cfg.Endpoint),
			// Else it would wait for DNS to say how to call, which a closed network never does.
			otlptracegrpc.WithDialOption(grpc.WithDisableServiceConfig()),
		)
		if err != nil {
			return nil, fmt.Errorf("export spans to %s: %w", cfg.Endpoint, err)
		}
		opts = append(opts, sdktrace.WithBatcher(exporter))
	}
	provider := sdktrace.NewTracerProvider(opts...)
	return &Telemetry{Provider: provider, Propagator: propagation.TraceContext{}, provider: provider}, nil
}

// Close exports what is left, for at most 3 s, and stops.
func (t *Telemetry) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("flush spans: %w", err)
	}
	return nil
}
