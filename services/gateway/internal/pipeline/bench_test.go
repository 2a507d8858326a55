package pipeline_test

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// BenchmarkAnAllowedCall is what the pipeline itself costs, with everybody around it
// answering at once, where metrics are exported and where they are not.
func BenchmarkAnAllowedCall(b *testing.B) {
	exported := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())).Meter("test")
	for name, meter := range map[string]metric.Meter{"nothing exported": noop.Meter{}, "exported": exported} {
		b.Run(name, func(b *testing.B) {
			w := newWorld()
			w.meter = meter
			answer := result(upstream.Request{Message: parse(b, safeCall)}, `{"content":[]}`)
			w.answer = func(context.Context, upstream.Request) (upstream.Answer, error) { return answer, nil }
			p, call := w.pipeline(b), w.call(b)
			watched, err := upstream.Watch(&server{conn: w}, w.meters(b))
			if err != nil {
				b.Fatal(err)
			}
			if call.Conn, _, err = watched.Open(b.Context(), principal.Key{}, upstream.ListTools("")); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if p.Do(b.Context(), call).Refusal != nil {
					b.Fatal("it was refused")
				}
				w.steps, w.records, w.sent = w.steps[:0], w.records[:0], w.sent[:0]
			}
		})
	}
}

// server is one to which a session is open already.
type server struct {
	upstream.Server

	conn upstream.Conn
}

func (*server) Transport() string { return "http" }

func (s *server) Open(context.Context, principal.Key, upstream.Request) (upstream.Conn, upstream.Answer, error) {
	return s.conn, upstream.Answer{}, nil
}
