package identity

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// issuerKey is the attribute with the name of an issuer.
const issuerKey = attribute.Key("sluice.issuer")

// metrics contains the metrics of the identity service. It is safe for concurrent use.
type metrics struct {
	revocation   metric.Float64Histogram
	registration metric.Registration
}

// newMetrics creates the metrics. The age of the keys of each issuer is read from the token book.
func newMetrics(meter metric.Meter, tokens *tokenBook) (*metrics, error) {
	m := new(metrics)
	var errs [3]error
	m.revocation, errs[0] = meter.Float64Histogram("sluice.token.revocation.duration",
		metric.WithUnit("s"), metric.WithDescription("Time from a revocation of tokens until no service accepts them"),
		metric.WithExplicitBucketBoundaries(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5))
	age, err := meter.Float64ObservableGauge("sluice.issuer.keys.age",
		metric.WithUnit("s"), metric.WithDescription("Time since the keys of an issuer were fetched"))
	errs[1] = err
	m.registration, errs[2] = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, one := range tokens.identities().Issuers {
			if fetched := tokens.keys.Status(one.source).Fetched; !fetched.IsZero() {
				o.ObserveFloat64(age, time.Since(fetched).Seconds(), metric.WithAttributes(issuerKey.String(one.Mapping.GetName())))
			}
		}
		return nil
	}, age)
	return m, errors.Join(errs[:]...)
}

func (m *metrics) recordRevocation(ctx context.Context, took time.Duration) {
	m.revocation.Record(ctx, took.Seconds())
}

func (m *metrics) close() error { return m.registration.Unregister() }
