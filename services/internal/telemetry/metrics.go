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

// exporterVariable is OpenTelemetry's variable for whether metrics are exported: "none" disables them.
const exporterVariable = "OTEL_METRICS_EXPORTER"

// startMetrics exports metrics every minute, or at the interval in OpenTelemetry's OTEL_METRIC_EXPORT_INTERVAL, which
// the reader reads.
func (t *Telemetry) startMetrics(ctx context.Context, cfg Config, process *resource.Resource) error {
	if cfg.Endpoint == "" || os.Getenv(exporterVariable) == "none" {
		t.Meters = noop.NewMeterProvider()
		return nil
	}
	exporter, err := otlpmetricgrpc.New(ctx,
		otlpmetricgrpc.WithEndpointURL(cfg.Endpoint),
		otlpmetricgrpc.WithDialOption(grpc.WithDisableServiceConfig()), // as for spans
	)
	if err != nil {
		return fmt.Errorf("export metrics to %s: %w", cfg.Endpoint, err)
	}
	provider := sdkmetric.NewMeterProvider(
		sdkmetric.WithResource(process),
		sdkmetric.WithReader(sdkmetric.NewPeriodicReader(&wanted{Exporter: exporter})),
	)
	t.Meters, t.flush = provider, append(t.flush, provider.Shutdown)
	return countGoroutines(provider)
}

// wanted exports to a collector that may accept only spans, such as Jaeger: then it logs that once, and does not
// return errors.
type wanted struct {
	sdkmetric.Exporter

	said atomic.Bool
}

// Export implements sdkmetric.Exporter.
func (w *wanted) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	err := w.Exporter.Export(ctx, m)
	if status.Code(err) == codes.Unimplemented && w.said.Swap(true) {
		return nil
	}
	return err
}
