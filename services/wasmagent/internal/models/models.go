// Package models asks models: of providers by their official libraries, and of the one that is
// built in and does what it is told.
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
	// maxAnswer is how long an answer may be, in bytes, and maxWire how much a provider may
	// send for it.
	maxAnswer = 1 << 20
	maxWire   = 16 << 20
	// defaultTokens is how many tokens an answer may have where nobody says.
	defaultTokens = 8192
	// perToken is how many bytes are taken for a token where a provider counts none.
	perToken = 4
	// defaultAnswerTime is how long a provider may take until its answer begins.
	defaultAnswerTime = 2 * time.Minute
)

// Errors of models, for [errors.Is].
var (
	// ErrNone: no such provider is configured.
	ErrNone = errors.New("no model is configured that has this name: name one under agents.providers and agents.model")
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

// A driver asks the models of a provider once. It tells pieces of the answer as they come. Its
// errors are a bare [*FailureError], [ErrCut], [ErrLarge] and the context's.
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
	// Retry bounds how often a question is asked that the provider refuses.
	Retry Retry
}

// Price is what a model costs, in US dollars for a million tokens: decimal digits with an
// optional fraction.
type Price struct{ Input, Output string }

// shortestKey is the length of a provider's key, in bytes, from which it is taken out of answers.
const shortestKey = 16

// Models are the models that may be asked. It is safe for concurrent use.
type Models struct {
	drivers map[string]driver
	retries map[string]Retry
	keys    map[string]*scrub.Scrubber
	// said are for what a provider says of a failure: a short key, such as a local model's placeholder, is taken
	// out of that alone, because it may be an ordinary word of an answer.
	said   map[string]*scrub.Scrubber
	prices map[string]price
}

// price is in billionths of a dollar for a million tokens.
type price struct{ input, output int64 }

// New returns the models of some providers, by name, beside the one that is built in: `script`. A provider may take
// answerTime until its answer begins; 0 means 2 min.
func New(providers map[string]Provider, answerTime time.Duration) (*Models, error) {
	m := &Models{drivers: map[string]driver{"script": script{}}, retries: make(map[string]Retry), keys: map[string]*scrub.Scrubber{"script": scrub.New(nil, nil)}, said: map[string]*scrub.Scrubber{"script": scrub.New(nil, nil)}, prices: make(map[string]price)}
	for name, p := range providers {
		if m.drivers[name] != nil {
			return nil, fmt.Errorf("agents.providers.%s: it is built in", name)
		}
		client := &http.Client{Transport: wire{transport(cmp.Or(answerTime, defaultAnswerTime))}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		switch p.Kind {
		case "openai":
			m.drivers[name] = newOpenAI(p, client)
		case "anthropic":
			m.drivers[name] = newAnthropic(p, client)
		default:
			return nil, fmt.Errorf("agents.providers.%s.kind: %q is neither openai nor anthropic", name, p.Kind)
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

// Has reports whether a model, as `provider:name`, can be asked.
func (m *Models) Has(model string) bool {
	provider, name, ok := strings.Cut(model, ":")
	return ok && name != "" && m.drivers[provider] != nil
}

// HasPrice reports whether it is known what a model costs.
func (m *Models) HasPrice(model string) bool {
	_, ok := m.prices[model]
	return ok
}

// Ask asks a model. Pieces of the answer are told as they come, and so is each wait before the
// provider is asked again, which happens only before an answer has begun.
//
// Errors: [ErrNone], [*FailureError], [ErrCut], [ErrLarge] and the context's. With an error the answer
// holds what the question may cost all the same, as far as it is counted or can be estimated; it
// is zero when the provider refused the question.
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

// once asks a driver once. A library that fails on what a provider sends ends the question alone.
func once(d driver, ctx context.Context, model string, req *wasmagentv1.AskModelRequest, tell func(string)) (answer Answer, err error) { //nolint:revive // the driver is what it is a method of
	defer func() {
		if said := recover(); said != nil {
			answer, err = Answer{}, malformed("its pieces do not fit")
		}
	}()
	return d.ask(ctx, model, req, tell)
}

// count completes the tokens of an answer of a number of bytes, and adds what they cost.
func (m *Models) count(req *wasmagentv1.AskModelRequest, answer *Answer, size int) {
	if answer.Input <= 0 { // it counts none, or not yet
		answer.Input = int64(proto.Size(req) / perToken)
		answer.Output = max(answer.Output, int64(size/perToken))
	}
	answer.Input, answer.Output = min(answer.Input, math.MaxInt32), min(max(answer.Output, 0), math.MaxInt32)
	cost := m.prices[req.GetModel()]
	answer.Nanos = of(answer.Input, cost.input) + of(answer.Output, cost.output)
}

// Most returns the most that one answer to a question should take, estimated: its Input, Output
// and Nanos. It is zero for the model that is built in.
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
