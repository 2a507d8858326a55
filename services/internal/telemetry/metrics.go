package telemetry

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// exporterVariable is an OpenTelemetry environment variable. If its value is "none", metrics are not exported.
const exporterVariable = "OTEL_METRICS_EXPORTER"

// startMetrics exports metrics every minute, or at the interval in the OpenTelemetry environment variable
// OTEL_METRIC_EXPORT_INTERVAL, which the periodic reader reads itself.
func (t *Telemetry) startMetrics(ctx context.Context, cfg Config, process *resource.Resource) error {
	if cfg.Endpoint == "" || os.Getenv(exporterVariable) == "none" {
		t.Meters = noop.NewMeterProvider()
		return nil
	}
	exporter, err := otlpmetricgrpc.New(ctx,
		otlpmetricgrpc.WithEndpointURL(cfg.Endpoint),
		otlpmetricgrpc.WithDialOption(grpc.WithDisableServiceConfig()), // as for traces, see startTraces
	)
	if err != nil {
		return fmt.Errorf("export metrics to %s: %w", cfg.Endpoint, err)
	}
	provider := sdkmetric.NewMeterProvider(
		sdkmetric.WithResource(process),
		sdkmetric.WithReader(sdkmetric.NewPeriodicReader(&optionalExporter{Exporter: exporter})),
	)
	t.Meters, t.flush = provider, append(t.flush, provider.Shutdown)
	return countGoroutines(provider)
}

// optionalExporter exports metrics to a collector that might accept only spans, as Jaeger does. In that case, it
// returns only the first error, which is then logged.
type optionalExporter struct {
	sdkmetric.Exporter

	reported atomic.Bool
}

// Export implements [sdkmetric.Exporter].
func (w *optionalExporter) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	err := w.Exporter.Export(ctx, m)
	if status.Code(err) == codes.Unimplemented && w.reported.Swap(true) {
		return nil
	}
	return err
}
