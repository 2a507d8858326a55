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

// Metric is one metric of a process, as it was exported last.
type Metric struct {
	// Service is the `service.name` of the process that made it.
	Service string
	// Name, Unit and Description are what it says of itself.
	Name, Unit, Description string
	// Kind is `counter`, `gauge` or `histogram`; else what the protocol calls it.
	Kind string
	// Points are its values.
	Points []Point
}

// Point is a value of a metric.
type Point struct {
	// Attributes are its attributes as text.
	Attributes map[string]string
	// Value is the value; of a histogram how many it has.
	Value int64
	// Sum is the sum of a histogram's values.
	Sum float64
}

// source is where a metric comes from.
type source struct{ instance, name string }

// receiver receives metrics for a collector: both services call their method Export.
type receiver struct {
	metricsv1.UnimplementedMetricsServiceServer

	collector *Collector
}

// Export implements metricsv1.MetricsServiceServer.
func (r *receiver) Export(_ context.Context, req *metricsv1.ExportMetricsServiceRequest) (*metricsv1.ExportMetricsServiceResponse, error) {
	raw, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	c := r.collector
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = append(c.raw, raw...)
	for _, resource := range req.GetResourceMetrics() {
		of := attributes(resource.GetResource().GetAttributes())
		for _, scope := range resource.GetScopeMetrics() {
			for _, made := range scope.GetMetrics() {
				c.metrics[source{of["service.instance.id"], made.GetName()}] = readMetric(of["service.name"], made)
			}
		}
	}
	return new(metricsv1.ExportMetricsServiceResponse), nil
}

func readMetric(service string, made *metricv1.Metric) Metric {
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

// Metrics returns every metric of every process, as it was exported last.
func (c *Collector) Metrics() []Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.metrics))
}

// Counts returns the values of the metrics whose names begin so, added up over
// processes, as NAME{KEY=VALUE,...}. What is 0 is left out.
func (c *Collector) Counts(prefix string) map[string]int64 {
	out := make(map[string]int64)
	for _, m := range c.Metrics() {
		for _, p := range m.Points {
			if p.Value == 0 || !strings.HasPrefix(m.Name, prefix) {
				continue
			}
			var of []string
			for _, key := range slices.Sorted(maps.Keys(p.Attributes)) {
				of = append(of, key+"="+p.Attributes[key])
			}
			out[m.Name+"{"+strings.Join(of, ",")+"}"] += p.Value
		}
	}
	return out
}
