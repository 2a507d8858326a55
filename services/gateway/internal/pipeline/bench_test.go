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

// BenchmarkAnAllowedCall measures the pipeline itself, with and without exported metrics. The fake services respond
// immediately.
func BenchmarkAnAllowedCall(b *testing.B) {
	exported := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())).Meter("test")
	for name, meter := range map[string]metric.Meter{"nothing exported": noop.Meter{}, "exported": exported} {
		b.Run(name, func(b *testing.B) {
			w := newTestPipeline()
			w.meter = meter
			answer := result(upstream.Request{Message: parse(b, safeCall)}, `{"content":[]}`)
			w.answer = func(context.Context, upstream.Request) (upstream.Answer, error) { return answer, nil }
			p, call := w.pipeline(b), w.call(b)
			server, err := upstream.New(benchTransport{w}, w.meters(b))
			if err != nil {
				b.Fatal(err)
			}
			if call.Upstream, _, err = server.Open(b.Context(), principal.Key{}, upstream.ListTools("", nil), nil); err != nil {
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

type benchTransport struct{ world *testPipeline }

func (benchTransport) Kind() string                  { return "http" }
func (benchTransport) ToolsChanged() <-chan struct{} { return nil }
func (benchTransport) Close() error                  { return nil }

func (o benchTransport) Open(context.Context, principal.Key, upstream.Request) (upstream.Conn, upstream.Answer, error) {
	return conn(o), upstream.Answer{}, nil
}

type conn benchTransport

func (c conn) Request(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
	return c.world.Forward(ctx, r, events)
}

func (conn) Notify(context.Context, upstream.Request) error { return nil }

func (conn) Listen(context.Context, upstream.Listener) error { return upstream.ErrNoStream }
func (conn) Close(context.Context) error                     { return nil }
