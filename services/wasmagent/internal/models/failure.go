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

// These are the kinds of a [FailureError]. Compare them with [errors.Is].
var (
	// ErrRateLimited means that the provider currently accepts no more questions (status 429).
	ErrRateLimited = errors.New("the provider of the model allows no more questions now")
	// ErrOverloaded means that the provider currently can't answer (status 408, 529 or 5xx, or 409 with a request to
	// retry).
	ErrOverloaded = errors.New("the provider of the model can't answer now")
	// ErrRejected means that the provider does not accept the question (all other statuses from 300 to 499).
	ErrRejected = errors.New("the provider of the model rejects the question")
	// ErrAuth means that the provider does not accept the configured key (status 401 or 403).
	ErrAuth = errors.New("the provider of the model does not accept the key that is configured for it under agents.providers")
	// ErrUnreachable means that the provider can't be reached, or that the connection failed before an answer began.
	ErrUnreachable = errors.New("the provider of the model can't be reached")
	// ErrInterrupted means that the answer ended before it was complete. The provider may charge for it.
	ErrInterrupted = errors.New("the model's answer broke off in the middle")
	// ErrMalformed means that the answer does not follow the provider's API. The provider may charge for it.
	ErrMalformed = errors.New("the model's answer is malformed")
)

// maxMessageBytes limits the length of the provider's message in an error, in bytes.
const maxMessageBytes = 300

// FailureError states why a question has no answer. It wraps its Kind.
type FailureError struct {
	Kind error
	// Status is the HTTP status of the provider's response, or 0 if there was no response.
	Status int
	// Message is the provider's message. It may be empty. It never contains the API key.
	Message string
	// Tries is how often the question was sent.
	Tries int
	// RetryAfter is the delay that the provider has requested, or 0 if the provider has requested none.
	RetryAfter time.Duration
	// MayBeCharged is true if the provider may charge for the question. In that case, [Models.Ask] returns the tokens
	// and the cost, which are counted or estimated.
	MayBeCharged bool

	// isRetryable is true if the question may be sent again.
	isRetryable bool
}

// Error returns the message of the kind, followed by the provider's status and the provider's message.
func (f *FailureError) Error() string {
	out := f.Kind.Error()
	if f.Status != 0 {
		out += fmt.Sprintf(": status %d %s", f.Status, http.StatusText(f.Status))
	}
	if f.Message != "" {
		out += ": " + f.Message
	}
	if f.Tries > 1 {
		out += fmt.Sprintf(" (asked %d times)", f.Tries)
	}
	if f.RetryAfter > 0 {
		out += fmt.Sprintf("; the provider requests a wait of %s", f.RetryAfter.Round(time.Second))
	}
	return strings.TrimSpace(out)
}

// Unwrap returns the kind.
func (f *FailureError) Unwrap() error { return f.Kind }

// errorObject is the error object in the APIs of both providers.
type errorObject struct {
	Type    string `json:"type"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// parseErrorObject parses the error object in a body or an event. It returns the zero value if there is none.
func parseErrorObject(text []byte) errorObject {
	var body struct {
		Error any `json:"error"`
	}
	if json.Unmarshal(text, &body) != nil {
		return errorObject{}
	}
	switch e := body.Error.(type) {
	case string:
		return errorObject{Message: e}
	case map[string]any:
		word := func(name string) string { s, _ := e[name].(string); return s }
		return errorObject{Type: word("type"), Code: word("code"), Message: word("message")}
	}
	return errorObject{}
}

// oneLine shortens a provider's message and puts it on a single line.
func oneLine(message string) string {
	text := strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(message, " "))
	if text = strings.Join(strings.Fields(text), " "); len(text) > maxMessageBytes {
		text = strings.ToValidUTF8(text[:maxMessageBytes], "") + " …"
	}
	return text
}

// quotaCodes contains the error codes that providers send with status 429 if the account has no credit left, so that
// retries are useless.
var quotaCodes = map[string]bool{"insufficient_quota": true, "billing_not_active": true}

func statusFailure(status int, header http.Header, body []byte, now time.Time) *FailureError {
	reason := parseErrorObject(body)
	f := &FailureError{Kind: ErrRejected, Status: status, Message: reason.Message, RetryAfter: retryAfter(status, header, now)}
	switch {
	case status == http.StatusTooManyRequests:
		f.Kind, f.isRetryable = ErrRateLimited, !quotaCodes[reason.Code] && !quotaCodes[reason.Type]
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		f.Kind = ErrAuth
	case status == http.StatusRequestTimeout, status >= http.StatusInternalServerError:
		f.Kind, f.isRetryable = ErrOverloaded, true
	case status == http.StatusConflict && (f.RetryAfter > 0 || header.Get("X-Should-Retry") == "true"):
		f.Kind, f.isRetryable = ErrOverloaded, true
	case status < http.StatusBadRequest:
		f.Message = "the provider redirects to another address: configure that address as the provider's url"
	}
	if header.Get("X-Should-Retry") == "false" {
		f.isRetryable = false
	}
	return f
}

// eventFailure returns the failure for an error event in a stream. hasBegun is true if the answer had already begun.
func eventFailure(event []byte, hasBegun bool) *FailureError {
	reason := parseErrorObject(event)
	f := &FailureError{Kind: ErrOverloaded, Message: reason.Message, isRetryable: true}
	switch reason.Type {
	case "rate_limit_error", "rate_limit_exceeded", "tokens", "requests":
		f.Kind = ErrRateLimited
	case "authentication_error", "permission_error", "invalid_api_key":
		f.Kind, f.isRetryable = ErrAuth, false
	case "invalid_request_error", "request_too_large", "not_found_error", "billing_error", "insufficient_quota":
		f.Kind, f.isRetryable = ErrRejected, false
	}
	if hasBegun {
		f.Kind, f.isRetryable, f.MayBeCharged = ErrInterrupted, false, true
	}
	return f
}
