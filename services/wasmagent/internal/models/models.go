// Package models asks models: of providers by their official libraries, and of the one that is
// built in and does what it is told.
package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/cockroachdb/apd/v3"
	"google.golang.org/protobuf/proto"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

const (
	// maxAnswer is how long an answer may be, in bytes, and maxWire how much a provider may
	// send for it.
	maxAnswer = 1 << 20
	maxWire   = 16 << 20
	// defaultTokens is how many tokens an answer may have where nobody says.
	defaultTokens = 8192
	// perToken is how many bytes are taken for a token where a provider counts none.
	perToken = 4
)

// Errors of models, for [errors.Is].
var (
	// ErrNone: no such provider is configured.
	ErrNone = errors.New("no model is configured that has this name: name one under agents.providers and agents.model")
	// ErrRefused: the provider takes no such question.
	ErrRefused = errors.New("the provider of the model takes no such question")
	// ErrAway: the provider does not answer.
	ErrAway = errors.New("the provider of the model does not answer")
	// ErrCut: the answer has as many tokens as it may, and is not whole: what it asks for is not
	// known.
	ErrCut = errors.New("the model's answer was cut: it has as many tokens as it may; raise max_tokens of its provider")
	// ErrLarge: the answer is too long.
	ErrLarge = fmt.Errorf("the model's answer has more than %d MiB", maxAnswer>>20)
)

// Answer is what a model said.
type Answer struct {
	Content string
	Calls   []*wasmagentv1.ModelCall
	// Input and Output are tokens, as the provider counts them.
	Input, Output int64
	// Nanos is what it cost, in billionths of a US dollar.
	Nanos int64
}

// A driver asks the models of a provider. It tells pieces of the answer as they come.
type driver interface {
	ask(ctx context.Context, model string, req *wasmagentv1.AskModelRequest, tell func(string)) (Answer, error)
}

// Provider is a provider of models.
type Provider struct {
	// Kind is openai, for all that speak its chat completions, or anthropic.
	Kind string
	// URL is where it is; empty means the provider's own.
	URL string
	// Key is a secret; may be empty.
	Key string
	// MaxTokens is how many tokens an answer may have where a question does not say; 0 means
	// 8,192.
	MaxTokens int
	// Prices are of its models, by name.
	Prices map[string]Price
}

// Price is what a model costs, in US dollars for a million tokens: decimal digits with an
// optional fraction.
type Price struct{ Input, Output string }

// Models are the models that may be asked. It is safe for concurrent use.
type Models struct {
	drivers map[string]driver
	prices  map[string]price
}

// price is in billionths of a dollar for a million tokens.
type price struct{ input, output int64 }

// New returns the models of some providers, by name, beside the one that is built in: `script`.
func New(providers map[string]Provider) (*Models, error) {
	m := &Models{drivers: map[string]driver{"script": script{}}, prices: make(map[string]price)}
	for name, p := range providers {
		if m.drivers[name] != nil {
			return nil, fmt.Errorf("agents.providers.%s: it is built in", name)
		}
		client := &http.Client{Transport: bounded{transport()}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		switch p.Kind {
		case "openai":
			m.drivers[name] = newOpenAI(p, client)
		case "anthropic":
			m.drivers[name] = newAnthropic(p, client)
		default:
			return nil, fmt.Errorf("agents.providers.%s.kind: %q is neither openai nor anthropic", name, p.Kind)
		}
		for model, cost := range p.Prices {
			input, err := nanos(cost.Input)
			output, also := nanos(cost.Output)
			if err = errors.Join(err, also); err != nil {
				return nil, fmt.Errorf("agents.providers.%s.prices.%s: %w", name, model, err)
			}
			m.prices[name+":"+model] = price{input, output}
		}
	}
	return m, nil
}

// nanos is an amount of dollars in billionths.
func nanos(text string) (int64, error) {
	d, _, err := apd.NewFromString(text)
	if err != nil || d.Negative || d.Form != apd.Finite {
		return 0, fmt.Errorf("%q is no amount of dollars, such as 0.25", text)
	}
	if _, err := apd.BaseContext.WithPrecision(30).Quantize(d, d, -9); err != nil {
		return 0, fmt.Errorf("%q is no amount of dollars, such as 0.25", text)
	}
	if !d.Coeff.IsInt64() {
		return 0, fmt.Errorf("%q is more than anything costs", text)
	}
	return d.Coeff.Int64(), nil
}

// Dollars are billionths of a dollar as decimal digits.
func Dollars(nanos int64) string {
	d := apd.New(nanos, -9)
	d.Reduce(d)
	return d.Text('f')
}

// Nanos is the way back from [Dollars].
func Nanos(dollars string) (int64, error) { return nanos(dollars) }

// Has tells whether a model, as `provider:name`, can be asked.
func (m *Models) Has(model string) bool {
	provider, name, ok := strings.Cut(model, ":")
	return ok && name != "" && m.drivers[provider] != nil
}

// HasPrice tells whether it is known what a model costs.
func (m *Models) HasPrice(model string) bool {
	_, ok := m.prices[model]
	return ok
}

// Ask asks a model once. Pieces of the answer are told as they come. Errors: [ErrNone],
// [ErrRefused], [ErrAway], [ErrLarge].
func (m *Models) Ask(ctx context.Context, req *wasmagentv1.AskModelRequest, tell func(string)) (Answer, error) {
	provider, name, _ := strings.Cut(req.GetModel(), ":")
	if !m.Has(req.GetModel()) {
		return Answer{}, fmt.Errorf("%w: %q", ErrNone, req.GetModel())
	}
	answer, err := m.drivers[provider].ask(ctx, name, req, tell)
	if err != nil {
		return Answer{}, err
	}
	size := len(answer.Content)
	for _, c := range answer.Calls {
		size += len(c.GetArguments()) + len(c.GetName()) + len(c.GetId()) + perToken
	}
	if size > maxAnswer {
		return Answer{}, ErrLarge
	}
	if answer.Input == 0 { // it counts none
		answer.Input, answer.Output = int64(proto.Size(req)/perToken), int64(size/perToken)
	}
	answer.Input, answer.Output = min(max(answer.Input, 0), math.MaxInt32), min(max(answer.Output, 0), math.MaxInt32)
	cost := m.prices[req.GetModel()]
	answer.Nanos = of(answer.Input, cost.input) + of(answer.Output, cost.output)
	return answer, nil
}

// of is what tokens cost, rounded up.
func of(tokens, million int64) int64 {
	n := new(big.Int).Mul(big.NewInt(tokens), big.NewInt(million))
	n.Add(n, big.NewInt(999_999)).Quo(n, big.NewInt(1_000_000))
	return n.Int64()
}

// most is how many tokens an answer of a provider may have; 0 is the default.
type most int

// tokens is how many tokens the answer to a question may have.
func (m most) tokens(req *wasmagentv1.AskModelRequest) int64 {
	if req.MaxTokens != nil {
		return int64(req.GetMaxTokens())
	}
	return int64(cmp.Or(int(m), defaultTokens))
}

// transport reaches providers.
func transport() *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 2 * time.Minute, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// bounded bounds what is read of an answer.
type bounded struct{ inner http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.inner.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxWire}
	return resp, nil
}

type boundedBody struct {
	io.ReadCloser
	left int
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, ErrLarge
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// statusError is an error of a provider's by the status of its answer.
func statusError(ctx context.Context, code int) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= http.StatusInternalServerError:
		return fmt.Errorf("%w: %d %s", ErrAway, code, http.StatusText(code))
	}
	return fmt.Errorf("%w: %d %s", ErrRefused, code, http.StatusText(code))
}

// lostError is an error of a connection to a provider.
func lostError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil: // a time-out of its own is not the caller's
		return ctx.Err()
	case errors.Is(err, ErrLarge):
		return ErrLarge
	}
	return fmt.Errorf("%w: the connection failed", ErrAway)
}
