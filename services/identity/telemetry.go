package identity

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// These are the keys of the attributes. docs/telemetry.md lists all their values.
const (
	issuerKey       = attribute.Key("sluice.issuer")
	signInOutcome   = attribute.Key("sluice.sign_in.outcome")
	connectionState = attribute.Key("sluice.connection.state")
)

// otherIssuer is the value of issuerKey for a name that is not in the configuration.
const otherIssuer = "_OTHER"

// metrics contains the metrics of the identity service. It is safe for concurrent use.
type metrics struct {
	revocation   metric.Float64Histogram
	signIns      metric.Int64Counter
	registration metric.Registration
	// connections is the registration of the gauge that counts connections. It is nil until the store is open.
	connections metric.Registration
}

// newMetrics creates the metrics. The age of the keys of each issuer is read from the token book.
func newMetrics(meter metric.Meter, tokens *tokenBook) (*metrics, error) {
	m := new(metrics)
	var errs [4]error
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
	m.signIns, errs[3] = meter.Int64Counter("sluice.sign_ins", metric.WithUnit("{sign_in}"), metric.WithDescription("Sign-ins of people"))
	return m, errors.Join(errs[:]...)
}

// recordSignIn counts a sign-in. The name of an unknown issuer is not recorded, because the caller chose this name.
func (m *metrics) recordSignIn(ctx context.Context, issuer string, isKnown bool, err error) {
	outcome := "success"
	switch {
	case errors.Is(err, errIsBlocked), errors.Is(err, errRoleRefused), errors.Is(err, errRefused):
		outcome = "refused"
	case err != nil:
		outcome = "error"
	}
	if !isKnown {
		issuer = otherIssuer
	}
	m.signIns.Add(ctx, 1, metric.WithAttributes(issuerKey.String(issuer), signInOutcome.String(outcome)))
}

// observeConnections reports the number of connections in each state. count returns these numbers.
func (m *metrics) observeConnections(meter metric.Meter, count func(context.Context) (map[string]int64, error)) error {
	number, err := meter.Int64ObservableGauge("sluice.server.connections",
		metric.WithUnit("{connection}"), metric.WithDescription("Servers at which the mesh signs in"))
	if err != nil {
		return err
	}
	m.connections, err = meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		states, err := count(ctx)
		for state, n := range states {
			o.ObserveInt64(number, n, metric.WithAttributes(connectionState.String(state)))
		}
		return err
	}, number)
	return err
}

func (m *metrics) recordRevocation(ctx context.Context, took time.Duration) {
	m.revocation.Record(ctx, took.Seconds())
}

func (m *metrics) close() error {
	if m.connections == nil {
		return m.registration.Unregister()
	}
	return errors.Join(m.registration.Unregister(), m.connections.Unregister())
}
