// Package telemetry starts OpenTelemetry in a process. Traces and metrics are exported over OTLP to the same collector.
// The process that starts a trace determines whether the trace is sampled. The package creates trace ids even if
// nothing is exported, so that journals, logs and servers always contain the same trace id.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// endpointVariable is the OpenTelemetry environment variable for the address of the collector. The configuration takes
// precedence over it.
const endpointVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"

// flushTimeout is how long a process that is stopping waits for the export of the remaining data.
const flushTimeout = 3 * time.Second

// Config configures traces and metrics. The zero value exports nothing and samples nothing.
type Config struct {
	// Service is the attribute `service.name` of the process.
	Service string
	// Version is the attribute `service.version` of the process.
	Version string
	// Endpoint is the address of the collector as an OTLP/gRPC URL, for example "http://localhost:4317". If it is empty,
	// the variable OTEL_EXPORTER_OTLP_ENDPOINT is used. If both are empty, nothing is exported.
	Endpoint string
	// Sample is the sampling rate, from 0 to 1, for traces that start in this process.
	Sample float64
	// Log receives OpenTelemetry's errors, for example if the collector is unavailable. It is required. OpenTelemetry
	// has one error handler per process, so all errors go to the log that was passed to the last call to Start.
	Log *slog.Logger
}

// Telemetry creates the traces and the metrics of a process. It is safe for concurrent use.
type Telemetry struct {
	Provider trace.TracerProvider
	// Meters creates meters. If nothing is exported, the meters do nothing.
	Meters metric.MeterProvider
	// Propagator forwards only W3C Trace Context. It drops baggage, which untrusted clients might have set.
	Propagator propagation.TextMapPropagator

	// flush contains a function for each exporter. Each function exports the exporter's remaining data and stops the
	// exporter.
	flush []func(context.Context) error
}

// Start starts telemetry. The caller must close the result.
func Start(ctx context.Context, cfg Config) (*Telemetry, error) {
	if !(cfg.Sample >= 0 && cfg.Sample <= 1) { // the condition is false for NaN
		return nil, fmt.Errorf("telemetry: sample %v is not between 0 and 1", cfg.Sample)
	}
	if cfg.Log == nil {
		return nil, errors.New("telemetry: a log is required")
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		cfg.Log.WarnContext(ctx, "telemetry has a problem", "error", err)
	}))
	if cfg.Endpoint == "" {
		cfg.Endpoint = os.Getenv(endpointVariable)
	}
	process, err := cfg.process()
	if err != nil {
		return nil, err
	}
	t := &Telemetry{Propagator: propagation.TraceContext{}}
	if err := errors.Join(t.startTraces(ctx, cfg, process), t.startMetrics(ctx, cfg, process)); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// process returns the resource that identifies the process in exported data. The instance id distinguishes replicas.
// Without it, the counts of several replicas would be mixed up. An operator may set the instance id.
func (c *Config) process() (*resource.Resource, error) {
	instance := resource.NewSchemaless(attribute.String("service.instance.id", uuid.NewString()))
	named, err := resource.Merge(instance, resource.Environment())
	if err != nil {
		return nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return resource.Merge(named, resource.NewSchemaless(
		attribute.String("service.name", c.Service),
		attribute.String("service.version", c.Version),
	))
}

func (t *Telemetry) startTraces(ctx context.Context, cfg Config, process *resource.Resource) error {
	opts := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(process),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.Sample))),
	}
	if cfg.Endpoint != "" {
		exporter, err := otlptracegrpc.New(ctx,
			otlptracegrpc.WithEndpointURL(cfg.Endpoint),
			// Without this option, the client would wait for a service config from DNS, which never arrives on an
			// isolated network.
			otlptracegrpc.WithDialOption(grpc.WithDisableServiceConfig()),
		)
		if err != nil {
			return fmt.Errorf("export spans to %s: %w", cfg.Endpoint, err)
		}
		opts = append(opts, sdktrace.WithBatcher(exporter))
	}
	provider := sdktrace.NewTracerProvider(opts...)
	t.Provider, t.flush = provider, append(t.flush, provider.Shutdown)
	return nil
}

// Close exports the remaining data and stops telemetry. The export takes at most 3 s.
func (t *Telemetry) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	var group errgroup.Group // concurrently, because each takes the whole time if the collector is unavailable
	for _, flush := range t.flush {
		group.Go(func() error { return flush(ctx) })
	}
	err := group.Wait()
	switch {
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.Unimplemented:
		return nil // an unavailable collector is not an error of this process
	case err != nil:
		return fmt.Errorf("export the remaining data: %w", err)
	default:
		return nil
	}
}

// countGoroutines adds a metric with the number of goroutines of the process (OpenTelemetry semantic conventions, Go
// runtime).
func countGoroutines(of metric.MeterProvider) error {
	_, err := of.Meter("runtime").Int64ObservableUpDownCounter("go.goroutine.count",
		metric.WithUnit("{goroutine}"), metric.WithDescription("Goroutines of the process"),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(runtime.NumGoroutine()))
			return nil
		}))
	return err
}
