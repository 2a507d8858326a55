// Package models sends questions to language models. It reaches the models of providers through the providers' APIs,
// and also contains the built-in model `script`. The wasmagent service uses the package.
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
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

const (
	// maxAnswer limits the size of an answer, and maxStreamBytes limits the size of the stream in which a provider
	// sends the answer. Both are in bytes.
	maxAnswer      = 1 << 20
	maxStreamBytes = 16 << 20
	// defaultTokens limits the number of tokens in an answer if neither the question nor the configuration limits it.
	defaultTokens = 8192
	// bytesPerToken is how many bytes a token is assumed to have when tokens are estimated.
	bytesPerToken = 4
	// defaultAnswerTime limits how long a provider may take until its answer begins, unless the configuration sets
	// another limit.
	defaultAnswerTime = 2 * time.Minute
)

// Questions to models fail with these errors. Compare them with [errors.Is].
var (
	// ErrNotConfigured means that no provider is configured for the model.
	ErrNotConfigured = errors.New("no provider is configured for the model: configure it under agents.providers, and name the model under agents.model")
	// ErrTruncated means that the answer is incomplete because it has reached the limit for its tokens.
	ErrTruncated = errors.New("the model's answer is incomplete: it has reached its maximum of tokens; raise max_tokens of its provider")
	// ErrLarge means that the answer is larger than the limit in bytes.
	ErrLarge = fmt.Errorf("the model's answer has more than %d MiB", maxAnswer>>20)
)

// Answer is an answer from a model.
type Answer struct {
	Content string
	Calls   []*wasmagentv1.ModelCall
	// Input is the number of tokens in the question, and Output is the number of tokens in the answer, as the provider
	// counts them.
	Input, Output int64
	// Nanos is the cost, in billionths of a US dollar.
	Nanos int64
}

// A driver sends a question to a provider once, and calls progress with pieces of the answer as they arrive. ask
// returns an unwrapped [*FailureError], [ErrTruncated], [ErrLarge], or the context's error.
type driver interface {
	ask(ctx context.Context, model string, req *wasmagentv1.AskModelRequest, progress func(string)) (Answer, error)
}

// Provider configures a model provider.
type Provider struct {
	// Kind is `openai` or `anthropic`. `openai` is for any server that implements OpenAI's Chat Completions API.
	Kind string
	// URL is the base URL of the API. If it is empty, the standard URL of the kind is used.
	URL string
	// Key is the secret key of the API. It may be empty.
	Key string
	// MaxTokens limits the number of tokens in an answer if the question sets no limit. 0 means 8,192.
	MaxTokens int
	// Prices maps the names of models to their prices.
	Prices map[string]Price
	// Retry determines how often and when a question is sent again if the provider refuses it or can't be reached.
	Retry Retry
}

// Price is the price of a model, in US dollars per million tokens. Input and Output are decimal numbers, such as 0.25.
type Price struct{ Input, Output string }

// minScrubbedKey is the length, in bytes, from which a provider's key is removed from answers. Shorter keys are not
// removed.
const minScrubbedKey = 16

// Models is the set of configured models. It is safe for concurrent use.
type Models struct {
	drivers         map[string]driver
	retries         map[string]Retry
	answerScrubbers map[string]*redact.Redactor
	// errorScrubbers removes keys from the error messages of providers, including keys that are shorter than
	// minScrubbedKey. Answers may contain short keys, because a short key may be a placeholder for a local model and
	// also an ordinary word.
	errorScrubbers map[string]*redact.Redactor
	prices         map[string]price
}

// price contains prices in billionths of a US dollar per million tokens.
type price struct{ input, output int64 }

// New returns the models of the given providers, which are keyed by name, and the built-in model `script`. answerTime
// limits how long a provider may take until its answer begins. 0 means 2 min.
func New(providers map[string]Provider, answerTime time.Duration) (*Models, error) {
	m := &Models{drivers: map[string]driver{"script": script{}}, retries: make(map[string]Retry), answerScrubbers: map[string]*redact.Redactor{"script": redact.New(nil, nil)}, errorScrubbers: map[string]*redact.Redactor{"script": redact.New(nil, nil)}, prices: make(map[string]price)}
	for name, p := range providers {
		if m.drivers[name] != nil {
			return nil, fmt.Errorf("agents.providers.%s: the name belongs to a built-in model", name)
		}
		var err error
		client := &http.Client{Transport: boundedTransport{transport(cmp.Or(answerTime, defaultAnswerTime))}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
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
		m.errorScrubbers[name] = redact.New(nil, redact.Forms(p.Key))
		m.answerScrubbers[name] = redact.New(nil, nil)
		if len(p.Key) >= minScrubbedKey {
			m.answerScrubbers[name] = m.errorScrubbers[name]
		}
		for model, cost := range p.Prices {
			input, err := parseDollars(cost.Input)
			output, otherErr := parseDollars(cost.Output)
			if err = errors.Join(err, otherErr); err != nil {
				return nil, fmt.Errorf("agents.providers.%s.prices.%s: %w", name, model, err)
			}
			m.prices[name+":"+model] = price{input, output}
		}
	}
	return m, nil
}

func parseDollars(text string) (int64, error) {
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

// Dollars formats an amount in billionths of a dollar as a decimal number of dollars.
func Dollars(nanos int64) string {
	d := apd.New(nanos, -9)
	d.Reduce(d)
	return d.Text('f')
}

// Nanos converts a decimal number of dollars to billionths of a dollar. It is the inverse of [Dollars].
func Nanos(dollars string) (int64, error) { return parseDollars(dollars) }

// Has reports whether a provider is configured for the model, which is written as `provider:name`.
func (m *Models) Has(model string) bool {
	provider, name, ok := strings.Cut(model, ":")
	return ok && name != "" && m.drivers[provider] != nil
}

// HasPrice reports whether a price is configured for the model.
func (m *Models) HasPrice(model string) bool {
	_, ok := m.prices[model]
	return ok
}

// Ask sends a question to a model. progress receives pieces of the answer as they arrive, and a message before each
// retry. A question is sent again only if no answer has begun.
//
// Ask returns [ErrNotConfigured], a [*FailureError], [ErrTruncated], [ErrLarge], or the context's error. If Ask fails,
// the returned Answer contains the tokens and the cost for which the provider may charge, which are counted or
// estimated. They are zero if the provider has refused the question.
func (m *Models) Ask(ctx context.Context, req *wasmagentv1.AskModelRequest, progress func(string)) (Answer, error) {
	provider, name, _ := strings.Cut(req.GetModel(), ":")
	if !m.Has(req.GetModel()) {
		return Answer{}, fmt.Errorf("%w: %q", ErrNotConfigured, req.GetModel())
	}
	var answer Answer
	received, clean := 0, m.answerScrubbers[provider]
	err := m.retries[provider].run(ctx, progress, func() (err error) {
		pieces := clean.Stream(progress)
		answer, err = askOnce(m.drivers[provider], ctx, name, req, func(piece string) {
			received += len(piece)
			pieces.Write(piece)
		})
		if err == nil {
			pieces.Close()
		}
		return err
	})
	if f, ok := errors.AsType[*FailureError](err); ok {
		f.Message = oneLine(m.errorScrubbers[provider].Log(f.Message))
		if !f.MayBeCharged {
			return Answer{}, err
		}
	}
	answer.Content = clean.Log(answer.Content)
	for _, c := range answer.Calls {
		c.Id, c.Name = clean.Log(c.GetId()), clean.Log(c.GetName())
		c.Arguments = clean.Log(string(clean.Answer([]byte(c.GetArguments()))))
	}
	if err != nil && received > 0 { // providers report the output tokens only at the end
		answer.Output = max(answer.Output, int64(received/bytesPerToken))
	}
	size := len(answer.Content)
	for _, c := range answer.Calls {
		size += len(c.GetArguments()) + len(c.GetName()) + len(c.GetId()) + bytesPerToken
	}
	if err == nil && size > maxAnswer {
		err = ErrLarge
	}
	m.countTokens(req, &answer, max(size, received))
	if err != nil {
		answer.Content, answer.Calls = "", nil
	}
	return answer, err
}

// askOnce calls a driver once. If the driver panics because of the provider's answer, only this question fails.
func askOnce(d driver, ctx context.Context, model string, req *wasmagentv1.AskModelRequest, progress func(string)) (answer Answer, err error) { //nolint:revive // the driver is like a receiver
	defer func() {
		if fault := recover(); fault != nil {
			answer, err = Answer{}, malformed("it can't be assembled")
		}
	}()
	return d.ask(ctx, model, req, progress)
}

// countTokens estimates the token counts that an answer lacks, and sets the cost of the answer. size is the size of the
// answer, in bytes.
func (m *Models) countTokens(req *wasmagentv1.AskModelRequest, answer *Answer, size int) {
	if answer.Input <= 0 { // the provider has not reported the tokens
		answer.Input = int64(proto.Size(req) / bytesPerToken)
		answer.Output = max(answer.Output, int64(size/bytesPerToken))
	}
	answer.Input, answer.Output = min(answer.Input, math.MaxInt32), min(max(answer.Output, 0), math.MaxInt32)
	cost := m.prices[req.GetModel()]
	answer.Nanos = costOf(answer.Input, cost.input) + costOf(answer.Output, cost.output)
}

// EstimateMaximum estimates how many tokens a question uses at most, and what it costs at most. It returns them in the
// fields Input, Output and Nanos. The estimate is zero for the built-in model.
func (m *Models) EstimateMaximum(req *wasmagentv1.AskModelRequest) Answer {
	provider, _, _ := strings.Cut(req.GetModel(), ":")
	d, ok := m.drivers[provider].(interface {
		tokens(req *wasmagentv1.AskModelRequest) int64
	})
	if !ok {
		return Answer{}
	}
	out := Answer{Input: int64(proto.Size(req) / bytesPerToken), Output: d.tokens(req)}
	cost := m.prices[req.GetModel()]
	out.Nanos = costOf(out.Input, cost.input) + costOf(out.Output, cost.output)
	return out
}

// costOf returns the cost of a number of tokens, rounded up, from the price of a million tokens.
func costOf(tokens, million int64) int64 {
	n := new(big.Int).Mul(big.NewInt(tokens), big.NewInt(million))
	n.Add(n, big.NewInt(999_999)).Quo(n, big.NewInt(1_000_000))
	return n.Int64()
}

// tokenLimit is a provider's limit for the tokens in an answer. 0 means the default.
type tokenLimit int

// tokens returns the limit for the tokens in the answer to a question.
func (m tokenLimit) tokens(req *wasmagentv1.AskModelRequest) int64 {
	if req.MaxTokens != nil {
		return int64(req.GetMaxTokens())
	}
	return int64(cmp.Or(int(m), defaultTokens))
}
