// Package models asks models: those of providers through their APIs, and the built-in model `script`. The
// wasmagent service uses it.
package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net/http"
	"strings"
	"time"

	"github.com/cockroachdb/apd/v3"
	"google.golang.org/protobuf/proto"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/scrub"
)

const (
	// maxAnswer bounds an answer, and maxWire what a provider may send for it, both in bytes.
	maxAnswer = 1 << 20
	maxWire   = 16 << 20
	// defaultTokens bounds the tokens of an answer if neither the question nor the configuration does.
	defaultTokens = 8192
	// perToken is the number of bytes that an estimate counts as one token.
	perToken = 4
	// defaultAnswerTime is how long a provider may take until its answer begins.
	defaultAnswerTime = 2 * time.Minute
)

// Errors of models, for [errors.Is].
var (
	// ErrNone means that no provider of this name is configured.
	ErrNone = errors.New("no model is configured that has this name: name one under agents.providers and agents.model")
	// ErrCut means that the answer reached its bound on tokens, so it is incomplete.
	ErrCut = errors.New("the model's answer was cut: it has as many tokens as it may; raise max_tokens of its provider")
	// ErrLarge means that the answer exceeds its bound on bytes.
	ErrLarge = fmt.Errorf("the model's answer has more than %d MiB", maxAnswer>>20)
)

// Answer is the answer of a model.
type Answer struct {
	Content string
	Calls   []*wasmagentv1.ModelCall
	// Input and Output are numbers of tokens, as the provider counts them.
	Input, Output int64
	// Nanos is the cost, in billionths of a US dollar.
	Nanos int64
}

// A driver asks a model of a provider once, and passes pieces of the answer to tell as they arrive. Its errors are a
// bare [*FailureError], [ErrCut], [ErrLarge] and the context's.
type driver interface {
	ask(ctx context.Context, model string, req *wasmagentv1.AskModelRequest, tell func(string)) (Answer, error)
}

// Provider configures a provider of models.
type Provider struct {
	// Kind is `openai`, for every server of OpenAI's chat completions, or `anthropic`.
	Kind string
	// URL is the base URL of the API; empty means the provider's own.
	URL string
	// Key is a secret; it may be empty.
	Key string
	// MaxTokens bounds the tokens of an answer if the question does not; 0 means 8,192.
	MaxTokens int
	// Prices are the prices of models, by name.
	Prices map[string]Price
	// Retry configures how often a question is repeated that the provider refuses.
	Retry Retry
}

// Price is the price of a model, in US dollars for a million tokens: decimal digits with an optional fraction.
type Price struct{ Input, Output string }

// shortestKey is the least length of a provider's key, in bytes, that is removed from answers.
const shortestKey = 16

// Models are the models that can be asked. They are safe for concurrent use.
type Models struct {
	drivers map[string]driver
	retries map[string]Retry
	keys    map[string]*scrub.Scrubber
	// said has scrubbers for the provider's reasons for failures. A short key, such as a placeholder for a local model,
	// is removed only there, because it may be an ordinary word of an answer.
	said   map[string]*scrub.Scrubber
	prices map[string]price
}

// price is in billionths of a US dollar for a million tokens.
type price struct{ input, output int64 }

// New returns the models of the providers, by name, and the built-in model `script`. answerTime bounds the time until a
// provider's answer begins; 0 means 2 min.
func New(providers map[string]Provider, answerTime time.Duration) (*Models, error) {
	m := &Models{drivers: map[string]driver{"script": script{}}, retries: make(map[string]Retry), keys: map[string]*scrub.Scrubber{"script": scrub.New(nil, nil)}, said: map[string]*scrub.Scrubber{"script": scrub.New(nil, nil)}, prices: make(map[string]price)}
	for name, p := range providers {
		if m.drivers[name] != nil {
			return nil, fmt.Errorf("agents.providers.%s: it is built in", name)
		}
		var err error
		client := &http.Client{Transport: wire{transport(cmp.Or(answerTime, defaultAnswerTime))}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		switch p.Kind {
		case "openai":
			m.drivers[name], err = newOpenAI(p, client)
		case "anthropic":
			m.drivers[name], err = newAnthropic(p, client)
		default:
			return nil, fmt.Errorf("agents.providers.%s.kind: %q is neither openai nor anthropic", name, p.Kind)
		}
		if err != nil {
			return nil, fmt.Errorf("agents.providers.%s.url: %w", name, err)
		}
		m.retries[name] = Retry{cmp.Or(p.Retry.Tries, DefaultTries), cmp.Or(p.Retry.Backoff, DefaultBackoff)}
		m.said[name] = scrub.New(nil, scrub.Spellings(p.Key))
		m.keys[name] = scrub.New(nil, nil)
		if len(p.Key) >= shortestKey {
			m.keys[name] = m.said[name]
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

// nanos parses an amount of dollars into billionths.
func nanos(text string) (int64, error) {
	d, _, err := apd.NewFromString(text)
	if err != nil || d.Negative || d.Form != apd.Finite {
		return 0, fmt.Errorf("%q is not an amount of dollars, such as 0.25", text)
	}
	if _, err := apd.BaseContext.WithPrecision(30).Quantize(d, d, -9); err != nil {
		return 0, fmt.Errorf("%q is not an amount of dollars, such as 0.25", text)
	}
	if !d.Coeff.IsInt64() {
		return 0, fmt.Errorf("%q is too large", text)
	}
	return d.Coeff.Int64(), nil
}

// Dollars formats billionths of a dollar as decimal digits.
func Dollars(nanos int64) string {
	d := apd.New(nanos, -9)
	d.Reduce(d)
	return d.Text('f')
}

// Nanos is the inverse of [Dollars].
func Nanos(dollars string) (int64, error) { return nanos(dollars) }

// Has reports whether a model, which is `provider:name`, can be asked.
func (m *Models) Has(model string) bool {
	provider, name, ok := strings.Cut(model, ":")
	return ok && name != "" && m.drivers[provider] != nil
}

// HasPrice reports whether a model has a price.
func (m *Models) HasPrice(model string) bool {
	_, ok := m.prices[model]
	return ok
}

// Ask asks a model. tell receives pieces of the answer as they arrive, and a text for each wait before the question is
// repeated. A question is repeated only if no answer has begun.
//
// Errors: [ErrNone], [*FailureError], [ErrCut], [ErrLarge] and the context's. With an error, the returned answer has
// what the provider may charge for the question, counted or estimated; it is zero if the provider refused the question.
func (m *Models) Ask(ctx context.Context, req *wasmagentv1.AskModelRequest, tell func(string)) (Answer, error) {
	provider, name, _ := strings.Cut(req.GetModel(), ":")
	if !m.Has(req.GetModel()) {
		return Answer{}, fmt.Errorf("%w: %q", ErrNone, req.GetModel())
	}
	var answer Answer
	heard, clean := 0, m.keys[provider]
	err := m.retries[provider].asks(ctx, tell, func() (err error) {
		pieces := clean.Stream(tell)
		answer, err = once(m.drivers[provider], ctx, name, req, func(piece string) {
			heard += len(piece)
			pieces.Write(piece)
		})
		if err == nil {
			pieces.Close()
		}
		return err
	})
	if f, ok := errors.AsType[*FailureError](err); ok {
		f.Said = line(m.said[provider].Log(f.Said))
		if !f.Charged {
			return Answer{}, err
		}
	}
	answer.Content = clean.Log(answer.Content)
	for _, c := range answer.Calls {
		c.Id, c.Name = clean.Log(c.GetId()), clean.Log(c.GetName())
		c.Arguments = clean.Log(string(clean.Answer([]byte(c.GetArguments()))))
	}
	if err != nil && heard > 0 { // a provider counts the output when the answer ends
		answer.Output = max(answer.Output, int64(heard/perToken))
	}
	size := len(answer.Content)
	for _, c := range answer.Calls {
		size += len(c.GetArguments()) + len(c.GetName()) + len(c.GetId()) + perToken
	}
	if err == nil && size > maxAnswer {
		err = ErrLarge
	}
	m.count(req, &answer, max(size, heard))
	if err != nil {
		answer.Content, answer.Calls = "", nil
	}
	return answer, err
}

// once asks a driver once. If a driver panics because of what a provider sends, only the question fails.
func once(d driver, ctx context.Context, model string, req *wasmagentv1.AskModelRequest, tell func(string)) (answer Answer, err error) { //nolint:revive // the driver is like a receiver
	defer func() {
		if said := recover(); said != nil {
			answer, err = Answer{}, malformed("its pieces do not fit")
		}
	}()
	return d.ask(ctx, model, req, tell)
}

// count completes the tokens of an answer of size bytes, and sets its cost.
func (m *Models) count(req *wasmagentv1.AskModelRequest, answer *Answer, size int) {
	if answer.Input <= 0 { // the provider counts none, or not yet
		answer.Input = int64(proto.Size(req) / perToken)
		answer.Output = max(answer.Output, int64(size/perToken))
	}
	answer.Input, answer.Output = min(answer.Input, math.MaxInt32), min(max(answer.Output, 0), math.MaxInt32)
	cost := m.prices[req.GetModel()]
	answer.Nanos = of(answer.Input, cost.input) + of(answer.Output, cost.output)
}

// Most returns an estimate of the expected maximum of a question: Input, Output and Nanos. It is zero for the built-in
// model.
func (m *Models) Most(req *wasmagentv1.AskModelRequest) Answer {
	provider, _, _ := strings.Cut(req.GetModel(), ":")
	d, ok := m.drivers[provider].(interface {
		tokens(req *wasmagentv1.AskModelRequest) int64
	})
	if !ok {
		return Answer{}
	}
	out := Answer{Input: int64(proto.Size(req) / perToken), Output: d.tokens(req)}
	cost := m.prices[req.GetModel()]
	out.Nanos = of(out.Input, cost.input) + of(out.Output, cost.output)
	return out
}

// of returns the cost of tokens, rounded up.
func of(tokens, million int64) int64 {
	n := new(big.Int).Mul(big.NewInt(tokens), big.NewInt(million))
	n.Add(n, big.NewInt(999_999)).Quo(n, big.NewInt(1_000_000))
	return n.Int64()
}

// most bounds the tokens of an answer of a provider; 0 means the default.
type most int

// tokens returns the bound on the tokens of the answer to a question.
func (m most) tokens(req *wasmagentv1.AskModelRequest) int64 {
	if req.MaxTokens != nil {
		return int64(req.GetMaxTokens())
	}
	return int64(cmp.Or(int(m), defaultTokens))
}
