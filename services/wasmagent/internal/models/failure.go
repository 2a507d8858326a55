package models

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
)

// Kinds of a [Failure], for [errors.Is].
var (
	// ErrRateLimited: the provider allows no more questions for now (429).
	ErrRateLimited = errors.New("the provider of the model allows no more questions now")
	// ErrOverloaded: the provider can't answer now: 5xx, 529, 408 or 409.
	ErrOverloaded = errors.New("the provider of the model can't answer now")
	// ErrRejected: the provider does not accept the question: another status of 300 to 499.
	ErrRejected = errors.New("the provider of the model rejects the question")
	// ErrAuth: the provider does not accept the configured key (401, 403).
	ErrAuth = errors.New("the provider of the model does not accept the key that is configured for it under agents.providers")
	// ErrUnreachable: there is no connection to the provider, or it ended before an answer began.
	ErrUnreachable = errors.New("the provider of the model can't be reached")
	// ErrBroken: the answer ended in the middle. The provider may charge for it.
	ErrBroken = errors.New("the model's answer broke off in the middle")
	// ErrMalformed: the answer does not follow the provider's API. The provider may charge for it.
	ErrMalformed = errors.New("the model's answer is malformed")
)

// maxSaid is how much of a provider's own words an error repeats, in bytes.
const maxSaid = 300

// Failure is why a question has no answer. It wraps its kind.
type Failure struct {
	Kind error
	// Status is the HTTP status of the provider's answer; 0 when there was none.
	Status int
	// Said is what the provider gave as the reason; may be empty. It holds no key.
	Said string
	// Tries is how often the provider was asked.
	Tries int
	// After is how long the provider asks to wait; 0 when it does not say.
	After time.Duration
	// Charged reports whether the provider may charge for the question. Then [Models.Ask]
	// returns what it took, counted or estimated.
	Charged bool

	// again reports whether the same question may be asked again.
	again bool
}

// Error says what happened, with the provider's status and words.
func (f *Failure) Error() string {
	out := f.Kind.Error()
	if f.Status != 0 {
		out += fmt.Sprintf(": status %d %s", f.Status, http.StatusText(f.Status))
	}
	if f.Said != "" {
		out += ": " + f.Said
	}
	if f.Tries > 1 {
		out += fmt.Sprintf(" (asked %d times)", f.Tries)
	}
	if f.After > 0 {
		out += fmt.Sprintf("; it says to wait for %s", f.After.Round(time.Second))
	}
	return strings.TrimSpace(out)
}

// Unwrap implements errors.Unwrap.
func (f *Failure) Unwrap() error { return f.Kind }

// refusal is the error object that both APIs answer with.
type refusal struct {
	Type    string `json:"type"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// refusalOf reads the error object of a body or an event; the zero value when there is none.
func refusalOf(text []byte) refusal {
	var body struct {
		Error any `json:"error"`
	}
	if json.Unmarshal(text, &body) != nil {
		return refusal{}
	}
	switch e := body.Error.(type) {
	case string:
		return refusal{Message: e}
	case map[string]any:
		word := func(name string) string { s, _ := e[name].(string); return s }
		return refusal{Type: word("type"), Code: word("code"), Message: word("message")}
	}
	return refusal{}
}

// line is what a provider gave as a reason as one short line.
func line(said string) string {
	text := strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(said, " "))
	if text = strings.Join(strings.Fields(text), " "); len(text) > maxSaid {
		text = strings.ToValidUTF8(text[:maxSaid], "") + " …"
	}
	return text
}

// noQuota are codes of a 429 that waiting does not change: the account has no money left.
var noQuota = map[string]bool{"insufficient_quota": true, "billing_not_active": true}

// statusFailure is the failure that an HTTP status of 300 or more means.
func statusFailure(status int, header http.Header, body []byte, now time.Time) *Failure {
	said := refusalOf(body)
	f := &Failure{Kind: ErrRejected, Status: status, Said: said.Message, After: retryAfter(status, header, now)}
	switch {
	case status == http.StatusTooManyRequests:
		f.Kind, f.again = ErrRateLimited, !noQuota[said.Code] && !noQuota[said.Type]
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		f.Kind = ErrAuth
	case status == http.StatusRequestTimeout, status >= http.StatusInternalServerError:
		f.Kind, f.again = ErrOverloaded, true
	case status == http.StatusConflict && (f.After > 0 || header.Get("X-Should-Retry") == "true"):
		f.Kind, f.again = ErrOverloaded, true
	case status < http.StatusBadRequest:
		f.Said = "it redirects to another address: configure that as the provider's url"
	}
	if header.Get("X-Should-Retry") == "false" {
		f.again = false
	}
	return f
}

// eventFailure is the failure that an error inside of a stream means. begun reports whether an
// answer had begun.
func eventFailure(event []byte, begun bool) *Failure {
	said := refusalOf(event)
	f := &Failure{Kind: ErrOverloaded, Said: said.Message, again: true}
	switch said.Type {
	case "rate_limit_error", "rate_limit_exceeded", "tokens", "requests":
		f.Kind = ErrRateLimited
	case "authentication_error", "permission_error", "invalid_api_key":
		f.Kind, f.again = ErrAuth, false
	case "invalid_request_error", "request_too_large", "not_found_error", "billing_error", "insufficient_quota":
		f.Kind, f.again = ErrRejected, false
	}
	if begun {
		f.Kind, f.again, f.Charged = ErrBroken, false, true
	}
	return f
}
