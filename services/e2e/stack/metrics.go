package stack

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metricv1 "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"
)

// Metric is the latest exported state of a process's metric.
type Metric struct {
	// Service is the `service.name` of the process that exports the metric.
	Service                 string
	Name, Unit, Description string
	// Kind is `counter`, `up-down counter`, `gauge` or `histogram`. For any other metric it is the name of the Go
	// type.
	Kind   string
	Points []Point
}

// Point is one value of a metric.
type Point struct {
	// Attributes contains the value's attributes as strings.
	Attributes map[string]string
	// Value is the integer value. For a histogram it is the number of recorded values.
	Value int64
	// Sum is the sum of a histogram's recorded values.
	Sum float64
}

// metricKey identifies a metric by its process's service.instance.id and by its name.
type metricKey struct{ instance, name string }

// metricsReceiver receives metrics for a collector. It is a separate type because the OTLP services for traces and for
// metrics both have a method Export.
type metricsReceiver struct {
	metricsv1.UnimplementedMetricsServiceServer

	collector *Collector
}

// Export implements metricsv1.MetricsServiceServer.
func (r *metricsReceiver) Export(_ context.Context, req *metricsv1.ExportMetricsServiceRequest) (*metricsv1.ExportMetricsServiceResponse, error) {
	raw, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	c := r.collector
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = append(c.raw, raw...)
	for _, resource := range req.GetResourceMetrics() {
		attrs := attributes(resource.GetResource().GetAttributes())
		for _, scope := range resource.GetScopeMetrics() {
			for _, made := range scope.GetMetrics() {
				c.metrics[metricKey{attrs["service.instance.id"], made.GetName()}] = newMetric(attrs["service.name"], made)
			}
		}
	}
	return new(metricsv1.ExportMetricsServiceResponse), nil
}

func newMetric(service string, made *metricv1.Metric) Metric {
	out := Metric{Service: service, Name: made.GetName(), Unit: made.GetUnit(), Description: made.GetDescription()}
	numbers := func(kind string, points []*metricv1.NumberDataPoint) {
		out.Kind = kind
		for _, p := range points {
			out.Points = append(out.Points, Point{Attributes: attributes(p.GetAttributes()), Value: p.GetAsInt()})
		}
	}
	switch data := made.GetData().(type) {
	case *metricv1.Metric_Sum:
		kind := "counter"
		if !data.Sum.GetIsMonotonic() {
			kind = "up-down counter"
		}
		numbers(kind, data.Sum.GetDataPoints())
	case *metricv1.Metric_Gauge:
		numbers("gauge", data.Gauge.GetDataPoints())
	case *metricv1.Metric_Histogram:
		out.Kind = "histogram"
		for _, p := range data.Histogram.GetDataPoints() {
			out.Points = append(out.Points, Point{Attributes: attributes(p.GetAttributes()), Value: int64(p.GetCount()), Sum: p.GetSum()})
		}
	default:
		out.Kind = fmt.Sprintf("%T", data)
	}
	return out
}

// Metrics returns each process's latest exported metrics.
func (c *Collector) Metrics() []Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.metrics))
}

// Counts returns the values of the metrics whose names begin with prefix, summed over all processes. The keys have the
// form NAME{KEY=VALUE,...}. Counts omits values of zero.
func (c *Collector) Counts(prefix string) map[string]int64 {
	out := make(map[string]int64)
	for _, m := range c.Metrics() {
		for _, p := range m.Points {
			if p.Value == 0 || !strings.HasPrefix(m.Name, prefix) {
				continue
			}
			var pairs []string
			for _, key := range slices.Sorted(maps.Keys(p.Attributes)) {
				pairs = append(pairs, key+"="+p.Attributes[key])
			}
			out[m.Name+"{"+strings.Join(pairs, ",")+"}"] += p.Value
		}
	}
	return out
}
