// Package telemetry starts OpenTelemetry for a process: traces over OTLP, sampled
// at the root, and a provider that makes trace ids even where nothing is
// exported, so that journals, logs and upstreams always name the same trace; and
// metrics over OTLP, to the same place.
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

// endpointVariable is OpenTelemetry's own name for where to export to. The
// configuration wins over it.
const endpointVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"

// flushTimeout bounds how long a stop waits for what is left to be exported.
const flushTimeout = 3 * time.Second

// Config says what to trace and where to send it, and metrics. The zero value exports
// nothing and samples nothing.
type Config struct {
	// Service is the process's `service.name`.
	Service string
	// Version is its `service.version`.
	Version string
	// Endpoint is where spans and metrics go, as an OTLP/gRPC URL such as
	// "http://localhost:4317"; empty exports nothing.
	Endpoint string
	// Sample is the share of traces that are sampled where this process is the
	// root: 0 to 1.
	Sample float64
	// Log takes what OpenTelemetry says goes wrong, such as that nobody takes what is
	// exported; required. OpenTelemetry has one place for that in a process, so the log
	// of who started last gets it.
	Log *slog.Logger
}

// Telemetry is what a process traces and counts with. It is safe for concurrent use.
type Telemetry struct {
	// Provider makes tracers.
	Provider trace.TracerProvider
	// Meters makes meters. Where nothing is exported, what they count costs nothing.
	Meters metric.MeterProvider
	// Propagator carries W3C Trace Context, and nothing else: baggage of
	// strangers is dropped.
	Propagator propagation.TextMapPropagator

	// flush are what exports the rest and stops.
	flush []func(context.Context) error
}

// Start starts telemetry, which the caller closes.
func Start(ctx context.Context, cfg Config) (*Telemetry, error) {
	if !(cfg.Sample >= 0 && cfg.Sample <= 1) { // NaN is neither
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

// process is what names the process to whoever reads what it exports. The instance
// tells replicas apart, whose counts would else be taken for those of one; whoever
// runs them may name it.
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
			// Else it would wait for DNS to say how to call, which a closed network never does.
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

// Close exports what is left, for at most 3 s, and stops.
func (t *Telemetry) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	var group errgroup.Group // side by side: where the collector is away, each takes all the time
	for _, flush := range t.flush {
		group.Go(func() error { return flush(ctx) })
	}
	err := group.Wait()
	switch {
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.Unimplemented:
		return nil // nobody takes it, which is no failure of this process
	case err != nil:
		return fmt.Errorf("export what is left: %w", err)
	default:
		return nil
	}
}

// countGoroutines has the goroutines of the process counted (OpenTelemetry semantic conventions, Go runtime).
func countGoroutines(of metric.MeterProvider) error {
	_, err := of.Meter("runtime").Int64ObservableUpDownCounter("go.goroutine.count",
		metric.WithUnit("{goroutine}"), metric.WithDescription("Goroutines of the process"),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(runtime.NumGoroutine()))
			return nil
		}))
	return err
}
